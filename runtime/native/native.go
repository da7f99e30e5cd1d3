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
