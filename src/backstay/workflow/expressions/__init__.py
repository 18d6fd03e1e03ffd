"""The expression language of `if:` and `${{ … }}`: parser, evaluation, templates."""
