"""The settings for elections and ISRs. A topic's own setting takes precedence, then the cluster's dynamic
setting, then the setting in this node's file."""

from __future__ import annotations

from kpybroker.config import BrokerConfig
from kpybroker.config.log_settings import LogSettings
from kpybroker.config.resource_type import ResourceType
from kpybroker.controller.state import ControllerState
from kpybroker.metadata.image import ELR_FEATURE


class Rules:
    """The settings that apply to each topic while one command is decided. `config` includes the cluster's dynamic
    settings."""

    def __init__(self, config: BrokerConfig, state: ControllerState) -> None:
        self.config = config
        self._state = state
        self.eligible_leader_replicas = state.features.get(ELR_FEATURE, 0) >= 1
        """Whether replicas that left the ISR below min.insync.replicas may be elected (KIP-966)."""

    def min_isr(self, topic: str) -> int:
        """The smallest number of in-sync replicas with which a Produce with acks=all is acknowledged."""
        return self._settings(topic).min_insync_replicas

    def unclean(self, topic: str) -> bool:
        """Whether a replica that may lack acknowledged records may lead when no other replica can."""
        return self._settings(topic).unclean_leader_election_enable

    def _settings(self, topic: str) -> LogSettings:
        return self.config.log_settings(self._state.config(ResourceType.TOPIC, topic))
