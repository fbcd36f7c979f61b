"""The settings of a view: a read-only topic with the records of another topic that match an expression."""

from __future__ import annotations

from collections.abc import Mapping

from kpybroker.config.key import STRING, ConfigKey, obeyed

VIEW_OF = "kpybroker.view.of"
VIEW_WHERE = "kpybroker.view.where"
VIEW_KEYS: Mapping[str, ConfigKey] = {
    key.name: key
    for key in (
        obeyed(
            VIEW_OF,
            STRING,
            None,
            doc="The topic that a view shows. Only CreateTopics can set it, and nothing can change it.",
        ),
        obeyed(
            VIEW_WHERE,
            STRING,
            None,
            doc='The expression that selects the records of a view, such as header.region == "eu".',
        ),
    )
}
