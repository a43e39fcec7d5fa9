sky jobs launch --yes --detach-run --num-jobs 3 task.yaml
