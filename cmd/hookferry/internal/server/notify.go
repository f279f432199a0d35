package server

import (
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// notify tells the service manager the state of the server, with systemd's protocol (sd_notify(3)).
// An error only means that there is no service manager.
func notify(state string) { _, _ = daemon.SdNotify(false, state) }

// notifyReloading tells the service manager that a reload has begun. The state daemon.SdNotifyReady
// says that the reload has ended.
func notifyReloading() {
	if now := daemon.SdNotifyMonotonicUsec(); now != "" {
		notify(daemon.SdNotifyReloading + "\n" + now)
	}
}

// heartbeat returns the time between two heartbeats for the service manager, or 0 if the manager
// wants none.
func heartbeat() time.Duration {
	within, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		return 0
	}
	return within / 2
}
