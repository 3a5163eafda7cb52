// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"log/slog"
	"os/user"

	systemd "github.com/coreos/go-systemd/v22/daemon"
)

// notify reports the service's state to systemd (sd_notify(3)), if run by it.
func notify(log *slog.Logger, state string) {
	if _, err := systemd.SdNotify(false, state); err != nil {
		log.Warn("tell systemd the service's state", "err", err)
	}
}

func missingGroup(err error) bool {
	var unknown user.UnknownGroupError
	return errors.As(err, &unknown)
}
