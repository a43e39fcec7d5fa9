"""Any Hydra application as a sweep: `python train.py -m hydra/sweeper=stagesweep 'lr=interval(1e-4,1e-2)'`.

    plugin.py     what Hydra finds (installed as `hydra_plugins.stagesweep`)
    settings.py   what stands under `hydra.sweeper`
    params.py     `hydra.sweeper.params` and overrides, as the sections of a search space file
    app.py        the command line with which any worker starts the same application for one trial
    callback.py   in that application: what the task function returned becomes the trial's `result.json`
    sweeping.py   makes the sweep or finds it, and works on it

Every Hydra application of the environment imports `plugin` and `settings` at its start: both stay light.
"""
