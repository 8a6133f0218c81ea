"""Batch and CloudWatch Logs in memory, as far as a launcher needs them: names, pages, states, faults.

It proves nothing of AWS: `tests/backends/aws` shows jobs that run. But each request is held against botocore's own
model of the service, where botocore is installed, and it counts calls and fails where a test wants it to.
"""

from __future__ import annotations

import itertools

PAGE = 100
ARN = "arn:aws:batch:us-east-1:123456789012"


class Meta:
    region_name = "us-east-1"
    endpoint_url = "https://aws.example"


def validate(service, operation, params):
    """Fails when AWS would not take such a request: a name, a type or a value that its model does not know."""
    try:
        import botocore.session
        from botocore.validate import ParamValidator
    except ImportError:
        return
    if service not in _MODELS:
        _MODELS[service] = botocore.session.get_session().get_service_model(service)
    method = "".join(word.title() for word in operation.split("_"))
    report = ParamValidator().validate(params, _MODELS[service].operation_model(method).input_shape)
    assert not report.has_errors(), f"{operation}: {report.generate_report()}"


_MODELS = {}


class Cloud:
    """Give it to a scheduler as its client of Batch, and `logs` as that of CloudWatch."""

    meta = Meta()

    def __init__(self, queues=("q",), kind="EC2"):
        self.queues = {name: {"state": "ENABLED", "status": "VALID"} for name in queues}
        self.environment = {
            "computeEnvironmentName": "ce",
            "computeEnvironmentArn": f"{ARN}:compute-environment/ce",
            "state": "ENABLED",
            "status": "VALID",
            "computeResources": {"type": kind, "maxvCpus": 256, "instanceTypes": ["optimal"]},
        }
        self.definitions = {}
        self.jobs = {}
        self.calls = []
        self.faults = []
        self.logs = Logs(self)
        self._numbers = itertools.count(1)

    def count(self, operation):
        return sum(name == operation for name, _ in self.calls)

    def __getattr__(self, name):
        serve = self.__class__.__dict__.get(f"_{name}")
        if name.startswith("_") or serve is None:
            raise AttributeError(name)
        return lambda **params: self.serve("batch", name, lambda: serve(self, **params), params)

    def serve(self, service, operation, act, params):
        """One call. A fault is `(operation, exception, before or after the service acted)`."""
        self.calls.append((operation, params))
        validate(service, operation, params)
        fault = next((f for f in self.faults if f[0] == operation), None)
        if fault:
            self.faults.remove(fault)
            if fault[2] == "after":
                act()
            raise fault[1]
        return act()

    def _describe_job_queues(self, jobQueues=None, nextToken=None):
        return {
            "jobQueues": [
                {
                    "jobQueueName": name,
                    "jobQueueArn": f"{ARN}:job-queue/{name}",
                    "computeEnvironmentOrder": [{"order": 1, "computeEnvironment": "ce"}],
                    **queue,
                }
                for name, queue in self.queues.items()
                if not jobQueues or name in [q.rpartition("/")[2] for q in jobQueues]
            ]
        }

    def _describe_compute_environments(self, computeEnvironments):
        return {"computeEnvironments": [self.environment]}

    def _register_job_definition(self, jobDefinitionName, **rest):
        revision = 1 + sum(d["jobDefinitionName"] == jobDefinitionName for d in self.definitions.values())
        arn = f"{ARN}:job-definition/{jobDefinitionName}:{revision}"
        self.definitions[arn] = {
            "jobDefinitionName": jobDefinitionName,
            "jobDefinitionArn": arn,
            "revision": revision,
            "status": "ACTIVE",
            **rest,
        }
        return {"jobDefinitionArn": arn}

    def _describe_job_definitions(self, jobDefinitionName, status):
        found = self.definitions.values()
        return {
            "jobDefinitions": [
                d for d in found if d["jobDefinitionName"] == jobDefinitionName and d["status"] == status
            ]
        }

    def _deregister_job_definition(self, jobDefinition):
        self.definitions[jobDefinition]["status"] = "INACTIVE"
        return {}

    def _submit_job(self, jobName, jobQueue, jobDefinition, **rest):
        if jobQueue not in self.queues:
            raise refusal("ClientException", f"Job queue {jobQueue} does not exist")
        definition = self.definitions.get(jobDefinition)
        if definition is None or definition["status"] != "ACTIVE":
            raise refusal("ClientException", f"Job definition {jobDefinition} does not exist or is not active")
        job_id = f"{next(self._numbers):08d}-0000-4000-8000-000000000000"
        job = {
            "jobId": job_id,
            "jobArn": f"{ARN}:job/{job_id}",
            "jobName": jobName,
            "jobQueue": f"{ARN}:job-queue/{jobQueue}",
            "jobDefinition": jobDefinition,
            "status": "SUBMITTED",
            "createdAt": 1_700_000_000_000,
            "retryStrategy": definition["retryStrategy"],
            "tags": rest.get("tags", {}),
            "attempts": [],
            "submitted": rest,
        }
        if definition["type"] == "multinode":
            job["nodeProperties"] = definition["nodeProperties"]
            for i in range(definition["nodeProperties"]["numNodes"]):
                self.jobs[f"{job_id}#{i}"] = {
                    "jobId": f"{job_id}#{i}",
                    "jobName": jobName,
                    "jobDefinition": jobDefinition,
                    "status": "SUBMITTED",
                    "nodeProperties": {"nodeIndex": i},
                    "container": {},
                    "attempts": [],
                }
        else:
            container = dict(definition["containerProperties"])
            extra = rest.get("containerOverrides", {}).get("environment", [])
            job["container"] = {**container, "environment": [*container["environment"], *extra]}
        self.jobs[job_id] = job
        for k in range(rest.get("arrayProperties", {}).get("size", 0)):
            self.jobs[f"{job_id}:{k}"] = {**job, "jobId": f"{job_id}:{k}", "arrayProperties": {"index": k}}
        if rest.get("arrayProperties"):
            job["arrayProperties"] = dict(rest["arrayProperties"])
        return {"jobName": jobName, "jobId": job_id}

    def _list_jobs(self, maxResults, jobQueue="", filters=(), nextToken=None, arrayJobId="", jobStatus=""):
        if arrayJobId:
            found = [j for i, j in self.jobs.items() if i.startswith(f"{arrayJobId}:") and j["status"] == jobStatus]
            return self._page(found, maxResults, nextToken)
        if jobQueue not in self.queues:
            raise refusal("ClientException", f"Job queue {jobQueue} does not exist")
        (wanted,) = filters
        key = {"JOB_NAME": "jobName", "JOB_DEFINITION": "jobDefinition"}[wanted["name"]]

        def matches(job):
            value = job[key].rpartition("/")[2]
            text = wanted["values"][0]
            return value.startswith(text[:-1]) if text.endswith("*") else value == text

        found = [
            job
            for job in self.jobs.values()
            if not {"#", ":"} & set(job["jobId"]) and job["jobQueue"].endswith(f"/{jobQueue}") and matches(job)
        ]
        return self._page(found, maxResults, nextToken)

    @staticmethod
    def _page(found, maxResults, nextToken):
        start = int(nextToken or 0)
        known = ("jobId", "jobName", "jobDefinition", "status", "statusReason", "isTerminated")
        keys = (*known, "container", "stoppedAt", "arrayProperties")
        page = [{k: job[k] for k in keys if k in job} for job in found[start : start + maxResults]]
        more = {"nextToken": str(start + maxResults)} if start + maxResults < len(found) else {}
        return {"jobSummaryList": page, **more}

    def _describe_jobs(self, jobs):
        assert len(jobs) <= PAGE
        for i in jobs:
            children = [j["status"] for name, j in self.jobs.items() if name.startswith(f"{i}:")]
            if children:
                summary = {status: children.count(status) for status in set(children)}
                self.jobs[i]["arrayProperties"]["statusSummary"] = summary
        return {"jobs": [self.jobs[i] for i in jobs if i in self.jobs]}

    def _terminate_job(self, jobId, reason):
        self.jobs[jobId].update(status="FAILED", statusReason=reason, isTerminated=True, stoppedAt=1_700_000_005_000)
        return {}

    def close(self):
        pass

    # -- what a test does to it ------------------------------------------------------------------

    def job(self, app_id):
        name = app_id.rpartition(":")[2]
        return next(j for j in self.jobs.values() if j["jobName"] == name and not {"#", ":"} & set(j["jobId"]))

    def child(self, app_id, k):
        return self.jobs[f"{self.job(app_id)['jobId']}:{k}"]

    def node(self, app_id, index):
        return self.jobs[f"{self.job(app_id)['jobId']}#{index}"]


class Logs:
    """CloudWatch Logs: `streams` are lists of `(milliseconds, message)`."""

    def __init__(self, cloud, page=2):
        self.cloud = cloud
        self.streams = {}
        self.page = page

    def get_log_events(self, **params):
        return self.cloud.serve("logs", "get_log_events", lambda: self._get(**params), params)

    def filter_log_events(self, **params):
        return self.cloud.serve("logs", "filter_log_events", lambda: self._filter(**params), params)

    def _filter(self, logGroupName, logStreamNames, filterPattern, nextToken="0"):
        (name,), wanted = logStreamNames, filterPattern.strip('"')
        events = [(t, m) for t, m in self.streams.get((logGroupName, name), ()) if wanted in m]
        start = int(nextToken)
        page = [{"timestamp": t, "message": m} for t, m in events[start : start + self.page]]
        return {"events": page, **({"nextToken": str(start + self.page)} if start + self.page < len(events) else {})}

    def _get(self, logGroupName, logStreamName, startFromHead, nextToken=None, startTime=0, endTime=2**60, limit=None):
        if (logGroupName, logStreamName) not in self.streams:
            raise refusal("ResourceNotFoundException", "The specified log stream does not exist.")
        events = [e for e in self.streams[logGroupName, logStreamName] if startTime <= e[0] < endTime]
        if not startFromHead:
            return {"events": [{"timestamp": t, "message": m} for t, m in events[-limit:]]}
        start = int((nextToken or "f/0").removeprefix("f/"))
        # As CloudWatch: an empty page may come before the end, and the end gives back the token that it was given.
        page = events[start : start + self.page]
        token = f"f/{start + len(page)}"
        return {"events": [{"timestamp": t, "message": m} for t, m in page], "nextForwardToken": token}

    def close(self):
        pass


def refusal(code, message, status=400, operation="SubmitJob"):
    """botocore's exception for an answer of AWS."""
    from botocore.exceptions import ClientError

    return ClientError(
        {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}, operation
    )
