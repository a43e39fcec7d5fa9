sky jobs launch --yes --detach-run --num-jobs 2 task.yaml
