// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"crypto/rand"
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

// Stay is what a process that the lease service starts with `gpuslice-broker --keep` gets on [ConfigFD] once it is where it shall be. It does
// nothing but stay there; without that it ends.
const Stay = "stay"

// Descriptors of a broker that the lease service starts with `gpuslice-broker --service`.
const (
	// ConfigFD is a pipe or a file with a [Config] in JSON. The broker does nothing before it has read it to its end, so that it can be
	// registered first.
	ConfigFD = 3
	// ReadyFD is where one line goes, a [Ready] in JSON, when the broker serves or cannot. It is closed then.
	ReadyFD = 4
	// SessionFD and SharedFD are the listening Unix sockets session.sock and shared.sock.
	SessionFD = 5
	SharedFD  = 6
)

// Config is what a broker has to know. Zero is the default where one is named.
type Config struct {
	// Environment is what the broker sees beside its own, as KEY=VALUE: the interceptor and the slice's directory. The loader has to see
	// them, so the broker executes itself again.
	Environment []string `json:"environment,omitempty"`

	// Lease is the lease's id and Log where its operator reads: what goes wrong with it is logged there.
	Lease string       `json:"lease,omitempty"`
	Log   *slog.Logger `json:"-"`

	VRAM uint64 `json:"vram"`
	// Token is what clients show: hexadecimal, of 32 bytes.
	Token string `json:"token"`
	// Device is the ordinal among those that the broker's CUDA shows.
	Device int `json:"device"`
	// Reserve: the memory of all buffers is taken from the card before the broker says that it is ready.
	Reserve bool `json:"reserve,omitempty"`

	Clients     int           `json:"clients,omitempty"`      // 16
	Linger      time.Duration `json:"linger,omitempty"`       // in nanoseconds; 0: the session does not end with its last connection
	LoadTimeout time.Duration `json:"load_timeout,omitempty"` // 30 s
	SharedBytes uint64        `json:"shared_bytes,omitempty"` // of all shared memory; 256 MiB

	// Followed: if this broker ends by itself, another one is started for the same session.
	Followed bool `json:"followed,omitempty"`
	// Number is how many brokers the session had before this one, less than [MaxBrokers], and Before why the last of them ended.
	Number uint64 `json:"number,omitempty"`
	Before string `json:"before,omitempty"`
}

// A handle has its broker's number in its upper bits: what one broker gave never names anything of another's.
const (
	handleBits = 48
	// MaxBrokers is how many brokers a session can have, one after the other.
	MaxBrokers = 1 << (64 - handleBits)
)

// Ready is the line on ReadyFD.
type Ready struct {
	Error string `json:"error,omitempty"` // why it does not serve
}

// A broker's exit codes: why it ended by itself. SIGTERM ends it with 0, after it told its clients that the lease has ended.
const (
	ExitFailed      = 1 // it says why on stderr
	ExitUsage       = 2
	ExitLoadTimeout = 3 // a module was compiled for longer than LoadTimeout
	ExitContext     = 4 // a kernel's fault took the context, and the driver gives a process no other
	ExitLinger      = 5 // its last connection was closed Linger ago
)

// ReadConfig reads to the end.
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

// ConfigFile is a file in memory that [ReadConfig] reads.
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

// NewToken makes one that nobody can guess.
func NewToken() string {
	var token [32]byte
	_, _ = rand.Read(token[:]) // never fails (crypto/rand)
	return hex.EncodeToString(token[:])
}
