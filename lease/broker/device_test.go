// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/api"
)

func TestUnreachableEnforcerIsTheCauseOfARefusal(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(api.DirEnv, dir)
	socket := filepath.Join(dir, api.AttachSocketName)
	if err := unattached(); err == nil || !strings.Contains(err.Error(), socket) {
		t.Errorf("without a socket: %v", err)
	}
	l, err := net.Listen("unixpacket", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := unattached(); err != nil {
		t.Errorf("with a socket: %v", err)
	}
}
