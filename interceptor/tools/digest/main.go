// SPDX-License-Identifier: Apache-2.0

// Digest writes digest.h, for a Go package with C code that includes files of another directory. "go generate" runs it in the package's.
//
// The go command rebuilds a package when a file of its directory has changed, but ignores other included files. Programs of stale packages would
// disagree with the interceptor about the ledger, or about the driver. digest.h changes with those files.
package main

import (
	"crypto/sha256"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

const header = "digest.h"

func main() {
	text, err := digest(".")
	if err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile(header, []byte(text), 0o644); err != nil {
		log.Fatal(err)
	}
}

// digest returns the contents of digest.h for the package in dir.
func digest(dir string) (string, error) {
	files, err := included(dir)
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	for _, name := range files {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(sum, "%s %d\n%s", name, len(b), b)
	}
	return fmt.Sprintf(`/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Generated from these files by "go generate". No file includes this one: it changes with them, so
 * the go command rebuilds the package.
 *
 *   %s
 *
 * SHA-256: %x
 */
`, strings.Join(files, "\n *   "), sum.Sum(nil)), nil
}

var include = regexp.MustCompile(`(?m)^(?://)?[ \t]*#[ \t]*include[ \t]+"([^"]+)"`)

// included returns the files outside dir that C code of its package includes, directly or not, named from dir.
func included(dir string) ([]string, error) {
	var found []string
	var look func(file string) error
	look = func(file string) error {
		b, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			return err
		}
		for _, name := range include.FindAllSubmatch(b, -1) {
			other := filepath.Join(filepath.Dir(file), string(name[1]))
			if filepath.Dir(other) == "." || slices.Contains(found, other) {
				continue
			}
			found = append(found, other)
			if err := look(other); err != nil {
				return err
			}
		}
		return nil
	}
	for _, pattern := range []string{"*.go", "*.c", "*.h", "*.S"} {
		files, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			// Tests compile their own programs.
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			if err := look(filepath.Base(file)); err != nil {
				return nil, err
			}
		}
	}
	slices.Sort(found)
	return found, nil
}
