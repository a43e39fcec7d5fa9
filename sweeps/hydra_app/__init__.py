"""Sweeps of any Hydra application: `python train.py -m hydra/sweeper=stagesweep 'lr=interval(1e-4,1e-2)'`.

    plugin.py     the sweeper plugin (installed as `hydra_plugins.stagesweep`)
    settings.py   the configuration under `hydra.sweeper`
    params.py     `hydra.sweeper.params` and overrides, as the sections of a search space file
    app.py        the command line with which a worker starts the application for one trial
    callback.py   in that application: writes the task function's return value to `result.json`
    sweeping.py   creates or opens the sweep, and works on it

Every Hydra application of the environment imports `plugin` and `settings` at its start: both stay light.
"""
