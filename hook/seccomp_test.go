// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"strings"
	"testing"

	"github.com/containerd/containerd/contrib/seccomp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

func rule(action specs.LinuxSeccompAction, names string, args ...specs.LinuxSeccompArg) specs.LinuxSyscall {
	return specs.LinuxSyscall{Names: strings.Fields(names), Action: action, Args: args}
}

func arg(index uint, op specs.LinuxSeccompOperator, values ...uint64) specs.LinuxSeccompArg {
	a := specs.LinuxSeccompArg{Index: index, Op: op, Value: values[0]}
	if len(values) > 1 {
		a.ValueTwo = values[1]
	}
	return a
}

const loader = "access faccessat openat fstat read mmap mprotect close"

func TestAProfileThatDeniesTheLoaderIsRefused(t *testing.T) {
	const allow, errno = specs.ActAllow, specs.ActErrno
	for name, c := range map[string]struct {
		standard specs.LinuxSeccompAction
		rules    []specs.LinuxSyscall
		denies   string // "" if it is accepted
	}{
		"all is allowed":                   {allow, nil, ""},
		"all is logged":                    {specs.ActLog, nil, ""},
		"all is denied":                    {errno, nil, "access"},
		"the loader's calls are allowed":   {errno, []specs.LinuxSyscall{rule(allow, loader)}, ""},
		"access is not among them":         {errno, []specs.LinuxSyscall{rule(allow, "openat fstat read mmap mprotect close")}, "access"},
		"access is denied":                 {allow, []specs.LinuxSyscall{rule(errno, "access faccessat")}, "access"},
		"access ends the process":          {allow, []specs.LinuxSyscall{rule(specs.ActKill, "access faccessat")}, "access"},
		"another program decides":          {allow, []specs.LinuxSyscall{rule(specs.ActNotify, "openat")}, "openat"},
		"a tracer decides":                 {allow, []specs.LinuxSyscall{rule(specs.ActTrace, "mmap")}, "mmap"},
		"an action is not known":           {allow, []specs.LinuxSyscall{rule("SCMP_ACT_NEW", "close")}, "close"},
		"it is allowed and denied":         {errno, []specs.LinuxSyscall{rule(allow, loader), rule(errno, "read")}, "read"},
		"a name has a certain address":     {allow, []specs.LinuxSyscall{rule(errno, "openat", arg(1, specs.OpMaskedEqual, 0xfff, 0x123))}, "openat"},
		"a call of old glibc depends":      {allow, []specs.LinuxSyscall{rule(errno, "open", arg(0, specs.OpMaskedEqual, 0xfff, 0x123))}, "openat"},
		"a call of old glibc is denied":    {allow, []specs.LinuxSyscall{rule(errno, "open newfstatat pread64")}, ""},
		"each of a purpose is denied":      {allow, []specs.LinuxSyscall{rule(errno, "fstat newfstatat")}, "fstat"},
		"the list's mapping is denied":     {allow, []specs.LinuxSyscall{rule(errno, "mmap", arg(2, specs.OpEqualTo, 3), arg(3, specs.OpEqualTo, 2))}, "mmap"},
		"another mapping is denied":        {allow, []specs.LinuxSyscall{rule(errno, "mmap", arg(2, specs.OpEqualTo, 3), arg(3, specs.OpEqualTo, 1))}, ""},
		"one argument twice is either":     {allow, []specs.LinuxSyscall{rule(errno, "mmap", arg(2, specs.OpEqualTo, 3), arg(2, specs.OpEqualTo, 4))}, "mmap"},
		"one twice that is neither":        {allow, []specs.LinuxSyscall{rule(errno, "mmap", arg(2, specs.OpEqualTo, 6), arg(2, specs.OpEqualTo, 7))}, ""},
		"writable code is denied":          {allow, []specs.LinuxSyscall{rule(errno, "mmap mprotect", arg(2, specs.OpMaskedEqual, 6, 6))}, ""},
		"all code is denied":               {allow, []specs.LinuxSyscall{rule(errno, "mmap", arg(2, specs.OpMaskedEqual, 4, 4))}, "mmap"},
		"what is larger is denied":         {allow, []specs.LinuxSyscall{rule(errno, "mprotect", arg(2, specs.OpGreaterThan, 1))}, ""},
		"what is as large is denied":       {allow, []specs.LinuxSyscall{rule(errno, "mprotect", arg(2, specs.OpGreaterEqual, 1))}, "mprotect"},
		"what is smaller is denied":        {allow, []specs.LinuxSyscall{rule(errno, "mprotect", arg(2, specs.OpLessThan, 1))}, "mprotect"},
		"what is no larger is denied":      {allow, []specs.LinuxSyscall{rule(errno, "openat", arg(2, specs.OpLessEqual, 0x7ffff))}, ""},
		"all but one mode is denied":       {allow, []specs.LinuxSyscall{rule(errno, "access", arg(1, specs.OpNotEqual, 4)), rule(errno, "faccessat", arg(2, specs.OpNotEqual, 4))}, ""},
		"a length is told":                 {allow, []specs.LinuxSyscall{rule(errno, "read", arg(2, specs.OpEqualTo, 832)), rule(errno, "pread64")}, "read"},
		"it is allowed for some addresses": {errno, []specs.LinuxSyscall{rule(allow, loader), rule(allow, "open", arg(0, specs.OpLessThan, 1<<40))}, "openat"},
	} {
		err := refuseSeccomp(&specs.LinuxSeccomp{DefaultAction: c.standard, Syscalls: c.rules}, nil)
		says := " the dynamic loader " + strings.Replace(c.denies, "access", loaderCalls()[0][0].name, 1) + "(2)"
		if (err == nil) != (c.denies == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", name, err, c.denies)
		}
	}
}

func TestTheDefaultProfilesAreAccepted(t *testing.T) {
	for _, capabilities := range [][]string{nil, {"CAP_SYS_ADMIN", "CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH"}} {
		spec := &specs.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: capabilities}}}
		if err := refuseSeccomp(seccomp.DefaultProfile(spec), nil); err != nil {
			t.Error(err)
		}
	}
	if err := refuseSeccomp(nil, map[string]string{"run.oci.handler": ""}); err != nil {
		t.Error(err)
	}
}
