"""Why a login does not succeed, for the visitor."""


class LoginRefusedError(Exception):
    """The provider or its token is not accepted. The text is a sentence for the visitor."""


class ProviderAwayError(Exception):
    """The provider does not answer as it should. The text says what was wrong, for the log."""
