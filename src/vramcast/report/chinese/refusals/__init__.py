"""Why a question has no answer, in Chinese: the sentences of errors, by what they are about."""
