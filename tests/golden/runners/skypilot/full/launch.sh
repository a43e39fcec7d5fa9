sky jobs launch --yes --detach-run --num-jobs 3 --secret WANDB_API_KEY task.yaml
