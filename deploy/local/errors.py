"""The error that users see as a sentence."""


class LocalError(Exception):
    """A condition on this machine prevents the control plane. The text is one sentence, printed without a
    traceback.
    """
