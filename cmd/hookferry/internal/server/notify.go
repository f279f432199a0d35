package server

import (
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// notify tells the service manager a state of the server, by systemd's protocol
// (sd_notify(3)). That nobody listens is no reason to stop.
func notify(state string) { _, _ = daemon.SdNotify(false, state) }

// notifyReloading begins a reload, which daemon.SdNotifyReady ends.
func notifyReloading() {
	if now := daemon.SdNotifyMonotonicUsec(); now != "" {
		notify(daemon.SdNotifyReloading + "\n" + now)
	}
}

// heartbeat is the time between two heartbeats that the service manager wants; 0: it
// wants none.
func heartbeat() time.Duration {
	within, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		return 0
	}
	return within / 2
}
