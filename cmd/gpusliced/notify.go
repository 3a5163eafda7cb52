// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"os/user"
)

// notify tells systemd how far the service is, if it asked (sd_notify(3)).
func notify(log *slog.Logger, state string) {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"}) // "@" is an abstract one
	if err == nil {
		defer conn.Close()
		_, err = conn.Write([]byte(state))
	}
	if err != nil {
		log.Warn("tell systemd the service's state", "err", err)
	}
}

func missingGroup(err error) bool {
	var unknown user.UnknownGroupError
	return errors.As(err, &unknown)
}
