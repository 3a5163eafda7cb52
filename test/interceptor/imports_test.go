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

	"github.com/gpuslice/gpuslice/test/must"
)

// preloaded runs a program outside a slice, with the interceptor preloaded between before and after.
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
		must.Output(preloaded(t, program, c.before, c.after, plugin))(t, c.name)
	}
}

// wrappers returns C source that defines each name. On its first call a definition finds the next one by dlsym; handle is a C
// expression. A recursive call during that, as from our dlsym, aborts the program.
func wrappers(names []string, handle string) string {
	var source strings.Builder
	fmt.Fprintf(&source, `#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
struct wrapped { const char *name; void *next; int busy; };
__attribute__((used)) static void *find_next(struct wrapped *w)
{
	if (w->next)
		return w->next;
	for (const char *n = w->name; w->busy; n++) {
		__asm__ volatile("syscall" ::"a"(1), "D"(2), "S"(n), "d"(1) : "rcx", "r11", "memory"); /* write */
		if (!*n)
			__builtin_trap();
	}
	w->busy = 1;
	w->next = dlsym(%s, w->name);
	w->busy = 0;
	return w->next;
}
`, handle)
	for i, name := range names {
		fmt.Fprintf(&source, "__attribute__((used)) static struct wrapped wrapped_%d = {.name = %q};\n", i, name)
		fmt.Fprintf(&source, "__asm__(\".globl %s\\n.type %s, @function\\n%s:\\n"+
			"push %%rdi\\npush %%rsi\\npush %%rdx\\npush %%rcx\\npush %%r8\\npush %%r9\\npush %%rax\\n"+
			"lea wrapped_%d(%%rip), %%rdi\\ncall find_next\\nmov %%rax, %%r11\\n"+
			"pop %%rax\\npop %%r9\\npop %%r8\\npop %%rcx\\npop %%rdx\\npop %%rsi\\npop %%rdi\\njmp *%%r11\\n\");\n", name, name, name, i)
	}
	return source.String()
}

func needsX8664(t *testing.T) {
	t.Helper()
	if runtime.GOARCH != "amd64" || os.Getenv("CC") != "" {
		t.Skip("needs x86-64: the wrappers are its code")
	}
}

// WSL has such pairs of libraries with the same soname.
func TestADriverThatLoadsTheDriverWorks(t *testing.T) {
	needsX8664(t)
	dir := t.TempDir()
	for library, inner := range map[string]string{"libcuda.so.1": "libcuda_loader.so", "libnvidia-ml.so.1": "libnvidia-ml_loader.so"} {
		path := filepath.Join(bin(t), "fakecuda", library)
		text := must.Get(os.ReadFile(path))(t)
		must.Do(t, os.WriteFile(filepath.Join(dir, inner), text, 0o755))
		file := must.Get(elf.Open(path))(t)
		defer file.Close()
		symbols := must.Get(file.DynamicSymbols())(t)
		var names []string
		for _, symbol := range symbols {
			if symbol.Section != elf.SHN_UNDEF && elf.ST_TYPE(symbol.Info) == elf.STT_FUNC {
				names = append(names, symbol.Name)
			}
		}
		source := filepath.Join(dir, library+".c")
		must.Do(t, os.WriteFile(source, []byte(wrappers(names, fmt.Sprintf("dlopen(%q, RTLD_NOW)", filepath.Join(dir, inner)))), 0o600))
		compileTo(t, filepath.Join(dir, library), "-shared", "-fPIC", "-Wl,-soname,"+library, source, "-ldl")
	}
	program := compile(t, "accounting")
	must.Output(inSlice(t, environment(t, "LD_LIBRARY_PATH="+dir, "FAKECUDA_CONTEXT=64M"), "4G", program))(t)
}

func TestAProgramMayDefineAnyFunctionThatTheLibraryImports(t *testing.T) {
	needsX8664(t)
	library := must.Get(elf.Open(filepath.Join(bin(t), "libgpuslice.so")))(t)
	defer library.Close()
	imports := must.Get(library.ImportedSymbols())(t)
	var names []string
	for _, symbol := range imports {
		switch symbol.Name {
		case "_r_debug": // data
		case "calloc", "free", "realloc": // called by the C library's own dlsym
		default:
			names = append(names, symbol.Name)
		}
	}
	must.True(t, len(names) >= 30, "the library imports only", names)
	dir := t.TempDir()
	try := func(names ...string) (string, error) {
		source := filepath.Join(dir, "wrappers.c")
		must.Do(t, os.WriteFile(source, []byte(wrappers(names, "RTLD_NEXT")), 0o600))
		// -rdynamic: libraries must call these definitions.
		program := compileTo(t, filepath.Join(dir, "program"), "-fno-builtin", "-rdynamic", source, "programs/plain.c", "-ldl", "-lpthread")
		must.Output(exec.Command(program).CombinedOutput())(t, names, "without the interceptor")
		return preloaded(t, program, nil, nil)
	}
	if out, err := try(names...); err == nil {
		return
	} else {
		t.Errorf("a program that defines all: %v\n%s", err, out)
	}
	for _, name := range names {
		must.Output(try(name))(t, "a program that defines", name)
	}
}
