package exe

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sync/errgroup"

	"reprise/runtime/native"
)

// Error is a request that can't be met, as the command reports it.
type Error struct {
	Code    string `json:"code"` // "toolchain", "io", …
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"` // a way out, e.g. the command to type
}

func (e *Error) Error() string {
	if e.Hint == "" {
		return e.Message
	}
	return e.Message + "; " + e.Hint
}

// options are what tests change.
type options struct {
	cflags  []string // for the driver, e.g. sanitizers
	dynamic bool     // link an executable dynamically, as sanitizers want
}

// Build links a model, whose kernels are in objects, to out: an executable or, if
// shared, a library out (made to end in .so) with its header beside it. Nothing is
// left behind where it fails, and an old out stays. An *Error says what of the
// toolchain is missing.
func Build(ctx context.Context, m *Model, objects []string, out string, shared bool) error {
	return build(ctx, m, objects, out, shared, options{})
}

// LibraryPath is where Build puts a shared model for out: it ends in .so.
func LibraryPath(out string) string { return strings.TrimSuffix(out, ".so") + ".so" }

// HeaderPath is where Build puts the header of a shared model.
func HeaderPath(out string) string { return strings.TrimSuffix(out, ".so") + ".h" }

// Toolchain finds the C compiler and the linker that Build needs, the *Error
// naming the command that installs them.
func Toolchain() (clang string, err error) {
	clang, err = exec.LookPath("clang-19")
	if err != nil {
		return "", &Error{Code: "toolchain", Message: "clang-19 was not found", Hint: "install it: apt-get install -y clang-19 lld-19 libc6-dev"}
	}
	if _, err := exec.LookPath("ld.lld-19"); err != nil {
		return "", &Error{Code: "toolchain", Message: "ld.lld-19 was not found", Hint: "install it: apt-get install -y lld-19"}
	}
	return clang, nil
}

func build(ctx context.Context, m *Model, objects []string, out string, shared bool, o options) (err error) {
	if err := m.Validate(); err != nil {
		return err
	}
	clang, err := Toolchain()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "reprise-link-")
	if err != nil {
		return &Error{Code: "io", Message: err.Error(), Hint: "set TMPDIR to a directory with space"}
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	t := makeTables(m)
	description, err := json.Marshal(m.Describe())
	if err != nil {
		return fmt.Errorf("model %s: signature: %w", m.Name, err)
	}
	files := native.Sources(shared)
	files = append(files, native.File{Name: "model.c", Text: t.c}, native.File{Name: "data.s", Text: t.asm}, native.File{Name: describeFile, Text: string(description)})
	for _, f := range files {
		if err := os.WriteFile(filepath.Join(dir, f.Name), []byte(f.Text), 0o666); err != nil {
			return &Error{Code: "io", Message: err.Error(), Hint: "set TMPDIR to a directory with space"}
		}
	}
	for name, data := range map[string][]byte{constsFile: m.Consts, weightsFile: t.weights} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o666); err != nil {
			return &Error{Code: "io", Message: err.Error(), Hint: "set TMPDIR to a directory with space"}
		}
	}

	// Baseline x86-64: the driver must be able to say which instructions are
	// missing. No contraction: what it computes must not depend on the compiler.
	cflags := append([]string{"-std=c11", "-O2", "-march=x86-64", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-fno-ident", "-pthread", "-Wall", "-Wextra"}, o.cflags...)
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	var linked []string
	for _, f := range files {
		ext := filepath.Ext(f.Name)
		if ext != ".c" && ext != ".s" {
			continue
		}
		object := f.Name + ".o"
		linked = append(linked, object)
		g.Go(func() error { // in dir with relative names, so that no path gets into an object
			return run(gctx, dir, clang, append(cflags[:len(cflags):len(cflags)], "-Qunused-arguments", "-c", "-o", object, f.Name)...)
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}

	args := []string{"-fuse-ld=lld", "-pthread", "-Wl,--build-id=none", "-Wl,--gc-sections", "-Wl,-z,noexecstack", "-Wl,-z,relro,-z,now"}
	if shared {
		out = LibraryPath(out)
		// Kernels' symbols stay inside: two models in one process may name theirs alike.
		if err := os.WriteFile(filepath.Join(dir, "exports"), []byte("{ global: reprise_*; local: *; };\n"), 0o666); err != nil {
			return &Error{Code: "io", Message: err.Error()}
		}
		args = append(args, "-shared", "-Wl,--version-script=exports", "-Wl,-z,defs")
	} else if !o.dynamic {
		args = append(args, "-static", "-no-pie")
	}
	args = append(args, o.cflags...)
	args = append(args, "-o", "out")
	args = append(args, linked...)
	for _, object := range objects {
		abs, err := filepath.Abs(object)
		if err != nil {
			return err
		}
		args = append(args, abs)
	}
	args = append(args, "-lm")
	if err := run(ctx, dir, clang, args...); err != nil {
		return err
	}
	if shared {
		var text string
		for _, f := range files {
			if f.Name == native.Header {
				text = f.Text
			}
		}
		if err := install([]byte(header(m, text)), HeaderPath(out), 0o666); err != nil {
			return err
		}
	}
	binary, err := os.ReadFile(filepath.Join(dir, "out"))
	if err != nil {
		return err
	}
	return install(binary, out, 0o777)
}

// install writes a file beside its place and renames it.
func install(data []byte, path string, mode os.FileMode) (err error) {
	fail := func(err error) error {
		var p *os.PathError
		if errors.As(err, &p) {
			err = p.Err
		}
		return &Error{Code: "io", Message: fmt.Sprintf("cannot write %s: %v", path, err)}
	}
	var f *os.File
	var temporary string
	for i := 0; f == nil; i++ { // another build of this process may be writing to the same place
		temporary = fmt.Sprintf("%s.tmp.%d.%d", path, os.Getpid(), i)
		f, err = os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
		if err != nil && !errors.Is(err, os.ErrExist) {
			return fail(err)
		}
	}
	_, err = f.Write(data)
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(temporary, path)
	}
	if err != nil {
		_ = os.Remove(temporary)
		return fail(err)
	}
	return nil
}

// run runs a tool in dir. Its error has what the tool said; where that is a
// missing part of the toolchain, the command that installs it.
func run(ctx context.Context, dir, tool string, args ...string) error {
	cmd := exec.CommandContext(ctx, tool, args...)
	cmd.Dir = dir
	// LANG: messages are matched below. No other variable of the user's may change the output.
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "TMPDIR=" + dir, "LC_ALL=C", "SOURCE_DATE_EPOCH=0"}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	err := cmd.Run()
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	said := strings.TrimSpace(stderr.String())
	e := &Error{Code: "toolchain", Message: fmt.Sprintf("%s failed: %v\n%s", filepath.Base(tool), err, said)}
	for _, m := range []struct{ text, hint string }{
		{"invalid linker name", "install it: apt-get install -y lld-19"},
		{"file not found", "install the C library's headers: apt-get install -y libc6-dev"},
		{"unable to find library -lc", "install the C library for linking: apt-get install -y libc6-dev"},
		{"cannot open crt1.o", "install the C library for linking: apt-get install -y libc6-dev"},
		{"cannot open Scrt1.o", "install the C library for linking: apt-get install -y libc6-dev"},
		{"cannot open crti.o", "install the C library for linking: apt-get install -y libc6-dev"},
	} {
		if strings.Contains(said, m.text) {
			e.Hint = m.hint
			break
		}
	}
	return e
}
