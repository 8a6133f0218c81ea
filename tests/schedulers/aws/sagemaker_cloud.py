"""SageMaker in memory, as far as a launcher needs it. Each request is held against botocore's model of the service."""

from __future__ import annotations

import datetime

from tests.schedulers.aws.batch_cloud import Logs, Meta, refusal, validate

AT = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)


class SageMaker:
    """Give it to `Clients` as `sagemaker`, `logs`, `iam`, `sts` and `s3`; objects are by bucket and key."""

    meta = Meta()

    def __init__(self):
        self.jobs = {}
        self.objects = {}
        self.buckets = {"out"}
        self.calls = []
        self.faults = []
        self.stream_log = Logs(self, page=50)

    def count(self, operation):
        return sum(name == operation for name, _ in self.calls)

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

    def create_training_job(self, **params):
        def act():
            name = params["TrainingJobName"]
            if name in self.jobs:
                raise refusal("ResourceInUse", f"Training job names must be unique: {name}")
            self.jobs[name] = {
                **params,
                "TrainingJobArn": f"arn:aws:sagemaker:us-east-1:1:training-job/{name}",
                "TrainingJobStatus": "InProgress",
                "SecondaryStatus": "Starting",
                "CreationTime": AT,
            }
            return {"TrainingJobArn": "arn"}

        return self.serve("sagemaker", "create_training_job", act, params)

    def describe_training_job(self, **params):
        def act():
            if params["TrainingJobName"] not in self.jobs:
                raise refusal("ValidationException", "Requested resource not found.")
            return self.jobs[params["TrainingJobName"]]

        return self.serve("sagemaker", "describe_training_job", act, params)

    def stop_training_job(self, **params):
        def act():
            self.jobs[params["TrainingJobName"]].update(TrainingJobStatus="Stopped", SecondaryStatus="Stopped")

        return self.serve("sagemaker", "stop_training_job", act, params)

    def delete_training_job(self, **params):
        return self.serve("sagemaker", "delete_training_job", lambda: self.jobs.pop(params["TrainingJobName"]), params)

    def search(self, **params):
        def act():
            def matches(job):
                tags = {tag["Key"]: tag["Value"] for tag in job["Tags"]}
                filters = params["SearchExpression"]["Filters"]
                wanted = [(f["Name"].removeprefix("Tags."), f.get("Value")) for f in filters]
                return all(key in tags and value in (None, tags[key]) for key, value in wanted)

            found = [job for job in self.jobs.values() if matches(job)]
            start, size = int(params.get("NextToken", 0)), params["MaxResults"]
            more = {"NextToken": str(start + size)} if start + size < len(found) else {}
            return {"Results": [{"TrainingJob": job} for job in found[start : start + size]], **more}

        return self.serve("sagemaker", "search", act, params)

    def get_role(self, **params):
        arn = f"arn:aws:iam::123456789012:role/{params['RoleName']}"
        return self.serve("iam", "get_role", lambda: {"Role": {"Arn": arn}}, params)

    def get_caller_identity(self, **params):
        return self.serve("sts", "get_caller_identity", lambda: {"Account": "123456789012"}, params)

    def put_object(self, **params):
        def act():
            if params["Bucket"] not in self.buckets:
                raise refusal("NoSuchBucket", "The specified bucket does not exist", 404, "PutObject")
            self.objects[params["Bucket"], params["Key"]] = params["Body"].read()
            return {}

        return self.serve("s3", "put_object", act, params)

    def create_bucket(self, **params):
        return self.serve("s3", "create_bucket", lambda: self.buckets.add(params["Bucket"]), params)

    def delete_object(self, **params):
        return self.serve("s3", "delete_object", lambda: self.objects.pop((params["Bucket"], params["Key"])), params)

    def describe_log_streams(self, **params):
        def act():
            names = [s for _, s in self.stream_log.streams if s.startswith(params["logStreamNamePrefix"])]
            return {"logStreams": [{"logStreamName": name} for name in names]}

        return self.serve("logs", "describe_log_streams", act, params)

    def get_log_events(self, **params):
        return self.stream_log.get_log_events(**params)

    def close(self):
        pass
