package server

import (
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// notify tells the service manager the state of the server, by systemd's protocol (sd_notify(3)). An
// error means that there is no service manager.
func notify(state string) { _, _ = daemon.SdNotify(false, state) }

// notifyReloading begins a reload, which daemon.SdNotifyReady ends.
func notifyReloading() {
	if now := daemon.SdNotifyMonotonicUsec(); now != "" {
		notify(daemon.SdNotifyReloading + "\n" + now)
	}
}

// heartbeat returns the time between two heartbeats that the service manager wants, 0 for none.
func heartbeat() time.Duration {
	within, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		return 0
	}
	return within / 2
}
