"""What AWS Batch and SageMaker refuse, by their API references.

https://docs.aws.amazon.com/batch/latest/APIReference/API_RegisterJobDefinition.html
https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_CreateTrainingJob.html
"""

from __future__ import annotations

from torchx.schedulers.kit import rules
from torchx.schedulers.kit.rules import Rule

_ROLE = r"arn:aws[\w-]*:iam::\d{12}:role/[\w+=,.@/-]+"
_S3 = rules.text("(https|s3)://[^/]+/?.*", 1024)
BATCH = (
    *(*rules.images(), *rules.MOUNTS),
    Rule(
        "queue",
        rules.text(r"[A-Za-z0-9][\w-]{0,127}|arn:aws[\w-]*:batch:[\w-]+:\d{12}:job-queue/[\w-]+"),
        "neither the name nor the ARN of a queue",
    ),
    *(Rule(name, rules.text(_ROLE, 2048), "not the ARN of a role") for name in ("job_role_arn", "execution_role_arn")),
    Rule("share_id", rules.text(r"[A-Za-z0-9]{1,255}\*?"), "not letters and digits"),
    Rule("host_retries", rules.whole(0, 9), "not 0 to 9"),
    Rule("log_group", rules.text(r"[\w./#-]+", 512), "not the name of a log group"),
    Rule("secrets", lambda found: all(str(v).startswith("arn:") for v in found.values()), "not variables with ARNs"),
    Rule(lambda r: [("the number of replicas", r.num_replicas)], rules.whole(1, 1000), "and 1000 is the most"),
)
SAGEMAKER = (
    *rules.images(),
    Rule(lambda r: [("a variable", name) for name in r.env], rules.text(r"[a-zA-Z_]\w*", 512), "no name for one"),
    Rule("instance_type", rules.text(r"ml\.[a-z0-9-]+\.[a-z0-9-]+"), "not a type such as `ml.g5.xlarge`"),
    Rule("role", rules.text(rf"{_ROLE}|[\w+=,.@-]{{1,64}}", 2048), "neither the name nor the ARN of a role"),
    rules.one_of("input_mode", "File", "Pipe", "FastFile"),
    rules.one_of("training_repository_access_mode", "Platform", "Vpc"),
    *(Rule(name, _S3, "not a location in S3") for name in ("output_path", "checkpoint_s3_uri")),
    Rule("instance_count", rules.whole(1), "not 1 or more"),
    Rule("keep_alive_period_in_seconds", rules.whole(0, 3600), "not 0 to 3600"),
    Rule("volume_size", rules.whole(1), "not 1 or more"),
    Rule("max_run", rules.whole(1, 2419200), "not 1 s to 28 days"),
    Rule("max_wait", rules.whole(1), "not 1 or more"),
    Rule("max_retry_attempts", rules.whole(1, 30), "not 1 to 30"),
    Rule("hyperparameters", lambda found: len(found) <= 100, "and SageMaker takes 100 at most"),
    Rule("metric_definitions", lambda found: len(found) <= 40, "and SageMaker takes 40 at most"),
    Rule("subnets", lambda found: 1 <= len(found) <= 16, "not 1 to 16"),
    Rule("security_group_ids", lambda found: 1 <= len(found) <= 5, "not 1 to 5"),
)
