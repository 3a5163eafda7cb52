// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Descriptors of a broker started with `gpuslice-broker --service`.
const (
	// ConfigFD is a pipe or file with a [Config] in JSON. The broker does nothing before it has read all of it, so that the
	// service can register it first.
	ConfigFD = 3
	// ReadyFD receives one line, a [Ready] in JSON, when the broker serves or has failed. The broker then closes it.
	ReadyFD = 4
	// SessionFD and SharedFD are the listening Unix sockets session.sock and shared.sock.
	SessionFD = 5
	SharedFD  = 6
)

// Config configures a broker. A zero value selects the default, if the field has one.
type Config struct {
	// Environment is added to the broker's environment, as KEY=VALUE: the interceptor and the slice's directory. The broker
	// then executes itself again, since the loader reads these variables.
	Environment []string `json:"environment,omitempty"`

	// Lease is the lease's id. Log receives the broker's errors.
	Lease string       `json:"lease,omitempty"`
	Log   *slog.Logger `json:"-"`

	VRAM uint64 `json:"vram"`
	// Token authenticates clients: 32 bytes in hexadecimal.
	Token string `json:"token"`
	// Device is the CUDA ordinal.
	Device int `json:"device"`
	// Reserve allocates all VRAM bytes from the device before the broker is ready.
	Reserve bool `json:"reserve,omitempty"`

	Clients     int           `json:"clients,omitempty"`      // maximum at a time; default 16
	Linger      time.Duration `json:"linger,omitempty"`       // nanoseconds from the last disconnect to the session's end; 0: no end
	LoadTimeout time.Duration `json:"load_timeout,omitempty"` // default 30 s
	SharedBytes uint64        `json:"shared_bytes,omitempty"` // maximum of shared memory; default 256 MiB

	// Followed means that the service starts another broker for the session if this one ends by itself.
	Followed bool `json:"followed,omitempty"`
	// Number counts the session's earlier brokers, and is less than [MaxBrokers]. Before is the reason for which the last one
	// ended.
	Number uint64 `json:"number,omitempty"`
	Before string `json:"before,omitempty"`
}

// The upper bits of a handle are its broker's number, so that handles of a session's brokers never collide. The lower ones count from a random
// number, so that a handle of another session is no handle of this one.
const (
	handleBits = 48
	// MaxBrokers is the maximum of consecutive brokers of a session.
	MaxBrokers = 1 << (64 - handleBits)
)

func firstHandle(number uint64) uint64 {
	var random [8]byte
	_, _ = rand.Read(random[:])                                                          // never fails (crypto/rand)
	return number<<handleBits | binary.LittleEndian.Uint64(random[:])>>(64-handleBits+1) // half of the numbers are left to count
}

// Ready is the line written to ReadyFD.
type Ready struct {
	Error string `json:"error,omitempty"` // why the broker cannot serve; empty on success
}

// Exit codes of a broker that ends by itself. After SIGTERM it notifies its clients and exits with 0.
const (
	ExitFailed      = 1 // the cause is on stderr
	ExitUsage       = 2
	ExitLoadTimeout = 3 // loading a module exceeded LoadTimeout
	ExitContext     = 4 // a kernel fault destroyed the context; the driver allows no second one in a process
	ExitLinger      = 5 // Linger has passed since the last disconnect
)

// ReadConfig reads a Config in JSON, up to the end of the input. Unknown fields are errors.
func ReadConfig(from io.Reader) (Config, error) {
	var c Config
	decoder := json.NewDecoder(from)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&c); err != nil {
		return c, fmt.Errorf("read the configuration: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return c, errors.New("read the configuration: there is something after it")
	}
	return c, nil
}

// ConfigFile returns a memory-backed file for [ReadConfig].
func ConfigFile(c Config) (*os.File, error) {
	fd, err := unix.MemfdCreate("configuration", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("pass on the configuration: %w", err)
	}
	file := os.NewFile(uintptr(fd), "configuration")
	err = json.NewEncoder(file).Encode(c)
	if err == nil {
		_, err = file.Seek(0, io.SeekStart)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("pass on the configuration: %w", err), file.Close())
	}
	return file, nil
}

// NewToken returns a random token.
func NewToken() string {
	var token [32]byte
	_, _ = rand.Read(token[:]) // never fails (crypto/rand)
	return hex.EncodeToString(token[:])
}
