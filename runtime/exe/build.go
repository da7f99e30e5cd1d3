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
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"reprise/internal/diag"
	"reprise/runtime/native"
)

// Error is the project's form of an error, named here for users of this package
// from outside. Its codes here are "toolchain" and "io"; package runtime hands on those
// of compiled models.
type Error = diag.Error

// Build links a model, whose kernels are in objects, to out: an executable or, if
// shared, a library out (made to end in .so) with its header beside it. Nothing is
// left behind where it fails, and an old out stays. An *Error says what of the
// toolchain is missing.
func Build(ctx context.Context, m *Model, objects []string, out string, shared bool) error {
	if err := m.Validate(); err != nil { // first: it takes no time
		return err
	}
	return inTemporary(func(dir string) error {
		d, err := CompileDriver(ctx, dir, shared)
		if err != nil {
			return err
		}
		return d.Build(ctx, m, objects, out)
	})
}

// inTemporary calls f with a directory that is removed afterwards.
func inTemporary(f func(dir string) error) (err error) {
	dir, err := os.MkdirTemp("", "reprise-link-")
	if err != nil {
		return temporaryError(err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	return f(dir)
}

func temporaryError(err error) error {
	return &Error{Code: "io", Message: err.Error(), Hint: "set TMPDIR to a directory with space"}
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

// Driver is the driver's compiled objects. One serves any number of models, also
// at the same time, and may be compiled while a model still is.
type Driver struct {
	clang   string
	dir     string
	shared  bool
	sources []native.File
	objects []string // absolute
	options options
}

// options are what tests change.
type options struct {
	cflags  []string // for the driver, e.g. sanitizers
	dynamic bool     // link an executable dynamically, as sanitizers want
}

// CompileDriver compiles the driver, for executables or for shared libraries,
// into dir, which is the caller's to remove once it is no longer used.
func CompileDriver(ctx context.Context, dir string, shared bool) (*Driver, error) {
	return compileDriver(ctx, dir, shared, options{})
}

func compileDriver(ctx context.Context, dir string, shared bool, o options) (*Driver, error) {
	clang, err := Toolchain()
	if err != nil {
		return nil, err
	}
	dir, err = filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	d := &Driver{clang: clang, dir: dir, shared: shared, sources: native.Sources(shared), options: o}
	units := native.Units(shared)
	for _, f := range slices.Concat(d.sources, units) {
		if err := os.WriteFile(filepath.Join(dir, f.Name), []byte(f.Text), 0o666); err != nil {
			return nil, temporaryError(err)
		}
	}
	var names []string
	for _, f := range units {
		names = append(names, f.Name)
		d.objects = append(d.objects, filepath.Join(dir, f.Name+".o"))
	}
	return d, d.compile(ctx, dir, names...)
}

// compile compiles sources, given by name, in dir to NAME.o. Names are relative, so
// that no path gets into an object.
func (d *Driver) compile(ctx context.Context, dir string, names ...string) error {
	// Baseline x86-64: the driver must be able to say which instructions are
	// missing. No contraction: what it computes must not depend on the compiler.
	flags := append([]string{"-std=c11", "-O2", "-march=x86-64", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-fno-ident", "-pthread", "-Wall", "-Wextra", "-Qunused-arguments"}, d.options.cflags...)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	for _, name := range names {
		g.Go(func() (err error) {
			defer diag.Recovered(&err)
			return run(ctx, dir, d.clang, append(flags[:len(flags):len(flags)], "-c", "-o", name+".o", name)...)
		})
	}
	return g.Wait()
}

// Build is like the function Build, for the kind that the driver was compiled for.
func (d *Driver) Build(ctx context.Context, m *Model, objects []string, out string) error {
	if err := m.Validate(); err != nil {
		return err
	}
	return d.BuildValid(ctx, m, objects, out)
}

// BuildValid is Build for a model that Validate has taken.
func (d *Driver) BuildValid(ctx context.Context, m *Model, objects []string, out string) error {
	return inTemporary(func(dir string) error { return d.build(ctx, dir, m, objects, out) })
}

func (d *Driver) build(ctx context.Context, dir string, m *Model, objects []string, out string) error {
	t := makeTables(m)
	description, err := json.Marshal(m.Describe())
	if err != nil {
		return fmt.Errorf("model %s: signature: %w", m.Name, err)
	}
	header := cHeader(m, d.text(native.Header))
	files := []struct {
		name string
		data []byte
	}{
		{"rp.h", []byte(d.text("rp.h"))},
		{native.Header, []byte(d.text(native.Header))},
		{"model.c", []byte(t.c)},
		{"data.s", []byte(t.asm)},
		{describeFile, description},
		{constsFile, m.Consts},
		{weightsFile, t.weights},
		// Kernels' symbols stay inside: two models in one process may name theirs alike.
		{"exports", []byte("{ global: reprise_*; local: *; };\n")},
	}
	for _, f := range files {
		if err := os.WriteFile(filepath.Join(dir, f.name), f.data, 0o666); err != nil {
			return temporaryError(err)
		}
	}
	if err := d.compile(ctx, dir, "model.c"); err != nil {
		return err
	}

	args := []string{"-fuse-ld=lld", "-pthread", "-Wl,--build-id=none", "-Wl,--gc-sections", "-Wl,-z,noexecstack", "-Wl,-z,relro,-z,now"}
	switch {
	case d.shared:
		out = LibraryPath(out)
		args = append(args, "-shared", "-Wl,--version-script=exports", "-Wl,-z,defs")
	case !d.options.dynamic && !m.HasForeign(): // a static program can't load libraries
		args = append(args, "-static", "-no-pie")
	}
	args = append(args, d.options.cflags...)
	args = append(args, "-o", "out", "model.c.o")
	for _, o := range d.objects {
		if filepath.Base(o) != native.ForeignUnit+".o" || m.HasForeign() {
			args = append(args, o)
		}
	}
	for _, object := range objects {
		abs, err := filepath.Abs(object)
		if err != nil {
			return err
		}
		args = append(args, abs)
	}
	args = append(args, "-lm")
	if err := run(ctx, dir, d.clang, args...); err != nil {
		return err
	}
	if d.shared {
		if err := install([]byte(header), HeaderPath(out), 0o666); err != nil {
			return err
		}
	}
	binary, err := os.ReadFile(filepath.Join(dir, "out"))
	if err != nil {
		return err
	}
	return install(binary, out, 0o777)
}

// text is one of the driver's sources.
func (d *Driver) text(name string) string {
	for _, f := range d.sources {
		if f.Name == name {
			return f.Text
		}
	}
	panic("BUG: the driver has no file " + name)
}

// install writes a file beside its place and renames it.
func install(data []byte, path string, mode os.FileMode) (err error) {
	fail := func(err error) error {
		var p *os.PathError
		if errors.As(err, &p) {
			err = p.Err
		}
		return &Error{Code: "io", Message: fmt.Sprintf("cannot write %s: %v", path, err), Hint: "give a path in a directory that exists and may be written, with room on its disk"}
	}
	if at, err := os.Stat(path); err == nil && !at.Mode().IsRegular() {
		if at.IsDir() {
			return fail(errors.New("it is a directory"))
		}
		return fail(errors.New("it is no regular file, and would be replaced by one"))
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

// withoutStack is what a tool said, less the stack that it prints when it crashes: its reason may stand before or behind it.
func withoutStack(said string) string {
	var kept []string
	for line := range strings.Lines(said) {
		t := strings.TrimSpace(line)
		numbered := len(t) > 2 && t[0] >= '0' && t[0] <= '9' && t[1:3] == ".\t"
		if t == "" || numbered || strings.HasPrefix(t, "PLEASE submit a bug report") || t == "Stack dump:" || strings.HasPrefix(t, "#") {
			continue
		}
		kept = append(kept, strings.TrimRight(line, "\n"))
	}
	return strings.Join(kept, "\n")
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
	said := withoutStack(stderr.String())
	e := &Error{Code: "toolchain", Message: fmt.Sprintf("%s failed: %v\n%s", filepath.Base(tool), err, said)}
	for _, m := range []struct{ text, hint string }{
		{"No space left on device", "free some space, or set TMPDIR to a directory that has some"},
		{"Bus error", "the disk may be full: free some space, or set TMPDIR to a directory that has some"}, // the linker writes through mapped memory
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
