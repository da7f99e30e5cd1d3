// Package native holds the C driver that is compiled into every model: the
// engine that walks a model's programs with a pool of threads, the readers of data
// and checkpoints, the command line of executables and the C interface of shared
// libraries. It uses nothing but the C library and Linux.
package native

import (
	"embed"
	"fmt"
	"io/fs"
	"slices"
	"strings"
)

//go:embed src
var sources embed.FS

// File is a source file of the driver.
type File struct {
	Name string // e.g. "engine.c"
	Text string
}

// Header is the name of the public C header of a shared model.
const Header = "reprise.h"

// Units are the driver's C files by what is compiled together: few compilations, since each reads
// the headers anew, but several, which can run at the same time. Names of functions are unique in the driver.
// What only models with foreign kernels need is a unit of its own.
func Units(shared bool) []File {
	const units = 3
	texts := make([]string, units)
	var foreign string
	n := 0
	for _, f := range Sources(shared) {
		line := fmt.Sprintf("#include %q\n", f.Name)
		switch {
		case !strings.HasSuffix(f.Name, ".c"):
		case f.Name == "foreign.c":
			foreign = line
		default:
			texts[n%units] += line
			n++
		}
	}
	var out []File
	for i, text := range append(texts, foreign) {
		name := fmt.Sprintf("unit%d.c", i)
		if i == units {
			name = ForeignUnit
		}
		out = append(out, File{Name: name, Text: "#define _GNU_SOURCE\n" + text})
	}
	return out
}

// ForeignUnit is the unit that loads foreign kernels; models without any do without it.
const ForeignUnit = "unit-foreign.c"

// Sources returns the driver's files, headers included, in the order of their
// names: with the command line of an executable or, if shared, the C interface.
func Sources(shared bool) []File {
	entries, err := fs.ReadDir(sources, "src")
	if err != nil {
		panic(fmt.Sprintf("BUG: embedded driver: %v", err))
	}
	leave := []string{"lib.c", "probe.c"}
	if shared {
		leave = []string{"main.c"}
	}
	var files []File
	for _, e := range entries {
		if slices.Contains(leave, e.Name()) || !(strings.HasSuffix(e.Name(), ".c") || strings.HasSuffix(e.Name(), ".h")) {
			continue
		}
		text, err := fs.ReadFile(sources, "src/"+e.Name())
		if err != nil {
			panic(fmt.Sprintf("BUG: embedded driver: %v", err))
		}
		files = append(files, File{Name: e.Name(), Text: string(text)})
	}
	return files
}
