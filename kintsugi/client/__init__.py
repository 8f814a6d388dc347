"""The light HTTP client: retries and timeouts on everything, streams that go on by themselves, errors as Kintsugi's own."""

from kintsugi.client.client import Client as Client
from kintsugi.client.heartbeats import HeartbeatSender as HeartbeatSender
from kintsugi.client.patience import Patience as Patience
