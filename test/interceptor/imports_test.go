// SPDX-License-Identifier: Apache-2.0

package interceptor

import (
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// preloaded runs a program with the interceptor and more preloaded, outside of a slice.
func preloaded(t *testing.T, program string, before, after []string, args ...string) (string, error) {
	t.Helper()
	list := append(append(before, filepath.Join(bin(t), "libgpuslice.so")), after...)
	cmd := exec.Command(program, args...)
	cmd.Env = environment(t, "LD_PRELOAD="+strings.Join(list, ":"))
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestEveryLookUpOfALoadersFunctionAnswersWithOurs(t *testing.T) {
	dir := t.TempDir()
	build := func(name, where string, flags ...string) string {
		return compileTo(t, filepath.Join(dir, name), append(flags, "-DWHERE=\""+where+"\"", "programs/lookups.c", "-ldl")...)
	}
	program := build("lookups", "the program")
	plugin := build("plugin.so", "the plugin", "-shared", "-fPIC", "-DPLUGIN")
	wrapper := build("wrapper.so", "the preloaded library", "-shared", "-fPIC", "-DPLUGIN")
	for _, c := range []struct {
		name          string
		before, after []string
	}{{"alone", nil, nil}, {"wrapper before", []string{wrapper}, nil}, {"wrapper behind", nil, []string{wrapper}}} {
		if out, err := preloaded(t, program, c.before, c.after, plugin); err != nil {
			t.Errorf("%s: %v\n%s", c.name, err, out)
		}
	}
}

// wrappers is C source that defines each name as sanitizers, allocators and seastar do: it finds the next by dlsym in its first call. A call
// that comes back while it does, as from our dlsym, ends the program.
func wrappers(names []string) string {
	var source strings.Builder
	source.WriteString("#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <stdlib.h>\n#include <unistd.h>\n" +
		"struct wrapped { const char *name; void *next; int busy; };\n" +
		"__attribute__((used)) static void *find_next(struct wrapped *w)\n{\n" +
		"\tif (w->next)\n\t\treturn w->next;\n" +
		"\tif (w->busy) {\n\t\tconst char *n = w->name;\n\t\twhile (*n)\n\t\t\t__asm__ volatile(\"syscall\" ::\"a\"(1), \"D\"(2), \"S\"(n++), \"d\"(1) : \"rcx\", \"r11\", \"memory\");\n\t\t__builtin_trap();\n\t}\n" +
		"\tw->busy = 1;\n\tw->next = dlsym(RTLD_NEXT, w->name);\n\tw->busy = 0;\n\treturn w->next;\n}\n")
	for i, name := range names {
		fmt.Fprintf(&source, "__attribute__((used)) static struct wrapped wrapped_%d = {.name = %q};\n", i, name)
		fmt.Fprintf(&source, "__asm__(\".globl %s\\n.type %s, @function\\n%s:\\n"+
			"push %%rdi\\npush %%rsi\\npush %%rdx\\npush %%rcx\\npush %%r8\\npush %%r9\\npush %%rax\\n"+
			"lea wrapped_%d(%%rip), %%rdi\\ncall find_next\\nmov %%rax, %%r11\\n"+
			"pop %%rax\\npop %%r9\\npop %%r8\\npop %%rcx\\npop %%rdx\\npop %%rsi\\npop %%rdi\\njmp *%%r11\\n\");\n", name, name, name, i)
	}
	return source.String()
}

func TestAProgramMayDefineAnyFunctionThatTheLibraryImports(t *testing.T) {
	if runtime.GOARCH != "amd64" || os.Getenv("CC") != "" {
		t.Skip("requires a host without a GPU of another architecture: the wrappers are x86-64 code")
	}
	library, err := elf.Open(filepath.Join(bin(t), "libgpuslice.so"))
	if err != nil {
		t.Fatal(err)
	}
	defer library.Close()
	imports, err := library.ImportedSymbols()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, symbol := range imports {
		switch symbol.Name {
		case "_r_debug": // data
		case "calloc", "free", "realloc": // the C library's dlsym calls them itself
		default:
			names = append(names, symbol.Name)
		}
	}
	if len(names) < 30 {
		t.Fatalf("the library imports only %q", names)
	}
	dir := t.TempDir()
	try := func(names ...string) (string, error) {
		source := filepath.Join(dir, "wrappers.c")
		if err := os.WriteFile(source, []byte(wrappers(names)), 0o600); err != nil {
			t.Fatal(err)
		}
		// -rdynamic: the definitions are the ones that libraries call.
		program := compileTo(t, filepath.Join(dir, "program"), "-fno-builtin", "-rdynamic", source, "programs/plain.c", "-ldl", "-lpthread")
		if out, err := exec.Command(program).CombinedOutput(); err != nil {
			t.Fatalf("%q: without the interceptor: %v\n%s", names, err, out)
		}
		return preloaded(t, program, nil, nil)
	}
	if out, err := try(names...); err == nil {
		return
	} else {
		t.Errorf("a program that defines all: %v\n%s", err, out)
	}
	for _, name := range names {
		if out, err := try(name); err != nil {
			t.Errorf("a program that defines %s: %v\n%s", name, err, out)
		}
	}
}

// Their runtimes call dlsym before they are ready for calls of the C library's functions, which they define.
func TestProgramsWithASanitizerStart(t *testing.T) {
	for _, flags := range [][]string{{"-fsanitize=thread"}, {"-fsanitize=address", "-static-libasan"}, {"-fsanitize=undefined"}} {
		program := compileTo(t, filepath.Join(t.TempDir(), "program"), append(flags, "programs/plain.c", "-ldl", "-lpthread")...)
		cmd := exec.Command("setarch", "-R", program)
		if err := exec.Command("setarch", "-R", "true").Run(); err != nil {
			cmd = exec.Command(program)
		}
		cmd.Env = environment(t, "LD_PRELOAD="+filepath.Join(bin(t), "libgpuslice.so"), "ASAN_OPTIONS=verify_asan_link_order=0:detect_leaks=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%q: %v\n%s", flags, err, out)
		}
	}
}
