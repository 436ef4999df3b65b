"""Stand-ins for wandb, mlflow and trackio that remember every call, over several processes' worth.

Each is put into `sys.modules`; what they have seen stays when a run is interrupted and resumed.
"""

from types import ModuleType, SimpleNamespace


class FakeImage:
    """What `wandb.Image` and `trackio.Image` keep."""

    def __init__(self, pixels, *, caption):
        self.pixels = pixels
        self.caption = caption


class Seen:
    """What one tool was told.

    Attributes:
        rows: (run id, step, values), in order.
        starts: keywords of every start.
        ends: what was said at every end.
        summary: of the last run that ended well.
        pictures: (pixels, caption) by name.
    """

    def __init__(self):
        self.rows = []
        self.starts = []
        self.ends = []
        self.summary = {}
        self.settings = {}
        self.pictures = {}
        self.fails = False

    def add(self, run, step, values):
        if self.fails:
            raise ConnectionError("the server is away\nsecond line")
        pictures = {name: x for name, x in values.items() if isinstance(x, FakeImage)}
        self.pictures |= pictures
        self.rows.append((run, step, {k: x for k, x in values.items() if k not in pictures}))

    def points(self):
        """(name, step) of every number, in order."""
        return [(name, step) for _, step, values in self.rows for name in values]

    def series(self, name):
        return {step: values[name] for _, step, values in self.rows if name in values}


def wandb(seen):
    module = ModuleType("wandb")

    class Run:
        def __init__(self, id):
            self.id = id
            self.summary = seen.summary

        def define_metric(self, name, step_metric):
            assert (name, step_metric) == ("*", "step")

        def log(self, values):
            values = dict(values)
            seen.add(self.id, values.pop("step"), values)

        def finish(self, exit_code):
            seen.ends.append(exit_code)

    def init(*, project, dir, name, id, resume, config, allow_val_change, reinit):
        assert (resume, reinit, allow_val_change) == ("allow", "create_new", True)
        seen.starts.append({"project": project, "dir": dir, "name": name, "id": id})
        seen.settings = config
        return Run(id or f"w{len(seen.starts)}")

    module.init = init
    module.Image = FakeImage
    return module


def mlflow(seen):
    module = ModuleType("mlflow")
    active = []

    def start_run(*, run_id, run_name, nested):
        assert nested == bool(active)
        seen.starts.append({"name": run_name, "id": run_id})
        active.append(run_id or f"m{len(seen.starts)}")
        return SimpleNamespace(info=SimpleNamespace(run_id=active[-1]))

    def log_params(params):
        assert len(params) <= 100
        assert not params.keys() & seen.settings.keys()
        seen.settings |= params

    def log_metrics(metrics, *, step, run_id):
        assert run_id == active[-1]
        for name in metrics:
            assert name.isascii(), name
            assert "," not in name
        seen.add(run_id, step, metrics)

    def log_image(image, artifact_file):
        assert active
        seen.pictures[artifact_file] = FakeImage(image, caption=None)

    def end_run(status):
        active.pop()
        seen.ends.append(status)

    module.active_run = lambda: active[-1] if active else None
    module.start_run, module.end_run = start_run, end_run
    module.log_params, module.log_metrics = log_params, log_metrics
    module.log_image = log_image
    module.set_tags = seen.summary.update
    return module


def trackio(seen):
    module = ModuleType("trackio")

    def init(*, project, name, config, resume):
        assert resume == "allow"
        seen.starts.append({"project": project, "id": name})
        seen.settings = config
        return SimpleNamespace(
            log=lambda values, step: seen.add(name, step, values),
            finish=lambda: seen.ends.append("finish"),
        )

    module.init = init
    module.Image = FakeImage
    return module


FAKES = {"wandb": wandb, "mlflow": mlflow, "trackio": trackio}
