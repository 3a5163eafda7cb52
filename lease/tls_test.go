// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"net"
	"strings"
	"testing"
)

func TestAnAddressOnAnotherMachineIsAHostAPortAndALease(t *testing.T) {
	for text, want := range map[string]address{
		"tls:gpu1.example.org:9837/lease-1": {"gpu1.example.org", "9837", "lease-1"},
		"tls:gpu1:9837":                     {"gpu1", "9837", ""},
		"tls:[2001:db8::1]:1/x":             {"2001:db8::1", "1", "x"},
	} {
		if got, err := parseAddress(text); err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "gpu1:9837", "unix:/run/s", "tls:", "tls:gpu1", "tls::9837", "tls:gpu1:", "tls:gpu1:0", "tls:gpu1:65536", "tls:gpu1:http",
		"tls:gpu1:9837/", "tls:gpu1:9837/a/b", "tls:gpu1:9837/a b", "tls:gpu1:9837/a\n", "tls:gpu1:9837/\u00fc", "tls:a?b:1", "tls:2001:db8::1:1"} {
		if got, err := parseAddress(text); err == nil || !strings.Contains(err.Error(), "tls:HOST:PORT") {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
}

func TestMissingTLSSettingsAreNamed(t *testing.T) {
	ctx := context.Background()
	for what, call := range map[string]func() error{
		"all three files": func() error { _, err := (Service{Address: "tls:h:1"}).List(ctx); return err },
		"name its address": func() error {
			_, err := (Service{TLS: TLS{Certificate: "/c"}}).List(ctx)
			return err
		},
		"names a lease": func() error { _, err := (Service{Address: "tls:h:1/l"}).List(ctx); return err },
		"names no lease": func() error {
			_, err := OpenTLS(ctx, "tls:h:1", "token", TLS{})
			return err
		},
		"no such file": func() error {
			_, err := OpenTLS(ctx, "tls:h:1/l", "token", TLS{"/none", "/none", "/none"})
			return err
		},
	} {
		if err := call(); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%v, want %q", err, what)
		}
	}
}

func FuzzAddress(f *testing.F) {
	for _, text := range []string{"tls:gpu1:9837/lease-1", "tls:[::1]:1", "tls:a:1/\x00"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		a, err := parseAddress(text)
		if err != nil {
			return
		}
		again := "tls:" + net.JoinHostPort(a.host, a.port)
		if a.lease != "" {
			again += "/" + a.lease
		}
		if b, err := parseAddress(again); err != nil || b != a {
			t.Errorf("%q is %+v, and %q is %+v, %v", text, a, again, b, err)
		}
	})
}
