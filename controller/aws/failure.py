"""What a failed request to AWS means."""

from controller.core.state.provider_errors import ErrorClass, classify


class AwsFailure(Exception):
    """A request to AWS failed; the message says why, without credentials."""

    @property
    def kind(self) -> ErrorClass | None:
        """Return what the failure means, None where its code does not say."""
        return classify(str(self))
