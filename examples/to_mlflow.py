"""Log an experiment's metrics to MLflow, a run for each policy (pip install mlflow).

continuum-bench swebench --seeds 5 --out runs/three && python to_mlflow.py
"""

import json
from pathlib import Path

import mlflow

experiment = Path("runs/three")
summary = json.loads((experiment / "summary.json").read_text())
workload, hardware = summary["manifest"]["workload"], summary["manifest"]["hardware"]

mlflow.set_experiment("agents")
for policy, found in summary["policies"].items():
    with mlflow.start_run(run_name=policy):
        mlflow.log_params(
            {"policy": policy, "jps": workload["jps"], "gpu": hardware["gpu"], "model": hardware["model"]}
        )
        mlflow.log_metrics({name: value for name, value in found.items() if isinstance(value, (int, float))})
        for name, bounds in found["intervals"].items():
            if bounds is not None:
                mlflow.log_metrics({f"{name}.low": bounds[0], f"{name}.high": bounds[1]})
        mlflow.log_artifact(str(experiment / "summary.json"))
