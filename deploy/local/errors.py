"""The one error that people see as a sentence."""


class LocalError(Exception):
    """Something on this machine prevents the control plane: the text is one clear sentence, shown without a
    traceback.
    """
