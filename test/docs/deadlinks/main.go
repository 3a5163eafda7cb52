// SPDX-License-Identifier: Apache-2.0

// Deadlinks DIR checks that each link within the site in DIR leads to an existing file and section. It does not use the network.
package main

import (
	"fmt"
	"html"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

var (
	link = regexp.MustCompile(`\b(?:href|src)="([^"]*)"`)
	id   = regexp.MustCompile(`\bid="([^"]*)"`)
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: deadlinks DIR")
		os.Exit(2)
	}
	links, dead, err := check(os.Args[1])
	for _, line := range dead {
		fmt.Fprintln(os.Stderr, "deadlinks: "+line)
	}
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "deadlinks:", err)
	case links == 0:
		fmt.Fprintln(os.Stderr, "deadlinks: the site has no link: is it one?")
	case len(dead) == 0:
		fmt.Printf("deadlinks: %d links within the site, all lead somewhere\n", links)
		return
	}
	os.Exit(1)
}

// check returns the number of links within the site, and a line for each dead one.
func check(site string) (links int, dead []string, err error) {
	pages := map[string]string{}
	err = filepath.WalkDir(site, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".html" {
			return err
		}
		text, err := os.ReadFile(path)
		pages[path] = string(text)
		return err
	})
	if err != nil {
		return 0, nil, err
	}
	for path, text := range pages {
		for _, found := range link.FindAllStringSubmatch(text, -1) {
			target := html.UnescapeString(found[1])
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			links++
			file, anchor, _ := strings.Cut(target, "#")
			to := path
			if file != "" {
				to = filepath.Join(filepath.Dir(path), file)
			}
			if info, err := os.Stat(to); err != nil || info.IsDir() {
				dead = append(dead, fmt.Sprintf("%s: there is no %s", path, target))
			} else if anchor != "" && !hasID(pages[to], anchor) {
				dead = append(dead, fmt.Sprintf("%s: %s has no section #%s", path, to, anchor))
			}
		}
	}
	return links, dead, nil
}

func hasID(text, anchor string) bool {
	for _, found := range id.FindAllStringSubmatch(text, -1) {
		if html.UnescapeString(found[1]) == anchor {
			return true
		}
	}
	return false
}
