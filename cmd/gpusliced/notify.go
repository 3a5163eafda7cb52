// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"log/slog"
	"os/user"

	systemd "github.com/coreos/go-systemd/v22/daemon"
)

// notify tells systemd how far the service is, if it asked (sd_notify(3)).
func notify(log *slog.Logger, state string) {
	if _, err := systemd.SdNotify(false, state); err != nil {
		log.Warn("tell systemd the service's state", "err", err)
	}
}

func missingGroup(err error) bool {
	var unknown user.UnknownGroupError
	return errors.As(err, &unknown)
}
