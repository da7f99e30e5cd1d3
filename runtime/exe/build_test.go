package exe_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"reprise/runtime/exe"
	"reprise/runtime/internal/fixture"
)

// TestBuildIsPure: equal input gives equal bytes, wherever and beside whatever it
// is built, and none of them is a path.
func TestBuildIsPure(t *testing.T) {
	fixture.NeedToolchain(t)
	common, err := compileShared()
	require.NoError(t, err)
	t.Setenv("TMPDIR", t.TempDir())
	build := func(shared, differs bool, driver *exe.Driver, kernels, out string) error {
		m := fixture.Train()
		if differs {
			m.Consts = append(m.Consts, 1)
		}
		if driver != nil {
			return driver.Build(context.Background(), m, []string{kernels}, out)
		}
		return exe.Build(context.Background(), m, []string{kernels}, out, shared)
	}
	cases := []struct {
		shared, differs bool
		driver          *exe.Driver
		equals          int // an earlier case
	}{
		0: {false, false, common.driver, 0},
		1: {false, false, nil, 0},
		2: {false, true, common.driver, -1},
		3: {true, false, nil, 3},
		4: {true, false, nil, 3},
	}
	var wg sync.WaitGroup
	files := make([][]byte, len(cases))
	errs := make([]error, len(cases))
	dirs := make([]string, len(cases))
	for i, c := range cases {
		dirs[i] = t.TempDir()
		kernels := fixture.Kernels(t)
		out := exe.LibraryPath(filepath.Join(dirs[i], strings.Repeat("x", i+1)))
		wg.Go(func() {
			errs[i] = build(c.shared, c.differs, c.driver, kernels, out)
			if errs[i] == nil {
				files[i], errs[i] = os.ReadFile(out)
			}
		})
	}
	wg.Wait()
	for i, c := range cases {
		require.NoError(t, errs[i])
		left, err := os.ReadDir(dirs[i])
		require.NoError(t, err)
		require.Len(t, left, map[bool]int{false: 1, true: 2}[c.shared], "nothing but the binary and its header")
		if c.equals >= 0 {
			require.True(t, bytes.Equal(files[i], files[c.equals]), "%d and %d", i, c.equals)
		} else {
			require.False(t, bytes.Equal(files[i], files[0]))
		}
		for _, text := range []string{os.TempDir(), "/home", "/root", "reprise-link"} {
			require.False(t, bytes.Contains(files[i], []byte(text)), text)
		}
	}
	left, err := os.ReadDir(os.TempDir())
	require.NoError(t, err)
	require.Empty(t, left, "temporary files are removed")
}

// TestLargeConstants: constants and weights of many pages arrive, and weights do
// not count twice.
func TestLargeConstants(t *testing.T) {
	m := fixture.Train()
	m.Values[0].Data = le(t, make([]float32, 256))
	m.Values[0].Data[1023] = 0x40
	m.Consts = append(m.Consts, make([]byte, 3<<20)...)
	m.Init = m.Init[1:]
	b := fixture.Builder{Model: *m}
	const size = 24 << 20
	weight := b.Value(exe.RoleParam, "big", 6, "", size) // u8
	b.Model.Values[len(b.Model.Values)-1].Data = bytes.Repeat([]byte("0123456789abcdef"), size/16)
	b.Model.Step = append(b.Model.Step, fixture.Launch("zero", 0, weight))
	p := buildProgram(t, b.Done())
	last := p.lines("--steps", "1", "--save", "c.safetensors")[1]
	file := p.read("c.safetensors")
	require.True(t, bytes.Equal(b.Model.Values[len(b.Model.Values)-1].Data, tensor(t, file, "big")))
	require.Less(t, last.Other, int64(16<<20))
	require.LessOrEqual(t, last.Peak-last.Other, last.Promised)
}

func TestBuildErrors(t *testing.T) {
	fixture.NeedToolchain(t)
	common, err := compileShared()
	require.NoError(t, err)
	kernels := common.kernels
	out := filepath.Join(t.TempDir(), "toy")
	build := func(m *exe.Model, objects ...string) error {
		return common.driver.Build(context.Background(), m, objects, out)
	}
	t.Run("a kernel that is not there", func(t *testing.T) {
		m := fixture.Train()
		m.Step[0].Symbol = "nowhere"
		err := build(m, kernels)
		require.ErrorContains(t, err, "undefined symbol: nowhere")
	})
	t.Run("an object that is not there", func(t *testing.T) {
		require.ErrorContains(t, build(fixture.Train(), kernels, "none.o"), "none.o")
	})
	t.Run("a model that is wrong", func(t *testing.T) {
		m := fixture.Train()
		m.Loss = ""
		require.EqualError(t, build(m, kernels), `model toy: loss "" is not a floating output of one element`)
	})
	t.Run("cancelled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		require.ErrorIs(t, exe.Build(ctx, fixture.Train(), []string{kernels}, out, false), context.Canceled)
	})
	t.Run("no place to write to", func(t *testing.T) {
		err := common.driver.Build(context.Background(), fixture.Train(), []string{kernels}, filepath.Join(filepath.Dir(out), "none", "toy"))
		var e *exe.Error
		require.True(t, errors.As(err, &e))
		require.Equal(t, "io", e.Code)
		require.Equal(t, "cannot write "+filepath.Join(filepath.Dir(out), "none", "toy")+": no such file or directory", e.Message)
	})
	t.Run("no toolchain", func(t *testing.T) {
		clang, err := exe.Toolchain()
		require.NoError(t, err)
		build := func() error {
			return exe.Build(context.Background(), fixture.Train(), []string{kernels}, out, false)
		}
		bin := t.TempDir()
		t.Setenv("PATH", bin)
		require.EqualError(t, build(), "clang-19 was not found\n  hint: install it: apt-get install -y clang-19 lld-19 libc6-dev")
		require.NoError(t, os.Symlink(clang, filepath.Join(bin, "clang-19")))
		require.EqualError(t, build(), "ld.lld-19 was not found\n  hint: install it: apt-get install -y lld-19")
	})
	require.NoFileExists(t, out)
	t.Run("an old file stays", func(t *testing.T) {
		require.NoError(t, os.WriteFile(out, []byte("old"), 0o666))
		m := fixture.Train()
		m.Step[0].Symbol = "nowhere"
		require.Error(t, build(m, kernels))
		old, err := os.ReadFile(out)
		require.NoError(t, err)
		require.Equal(t, "old", string(old))
	})
}

// TestHeader compiles the generated header as C and as C++ and checks what it lists.
func TestHeader(t *testing.T) {
	out := filepath.Join(t.TempDir(), "toy")
	m := fixture.Train()
	m.Name = "a */ name"
	require.NoError(t, exe.Build(context.Background(), m, []string{fixture.Kernels(t)}, out, true))
	text, err := os.ReadFile(exe.HeaderPath(out))
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(string(text), "/* a * / name for cpu:x86-64-v3: 6608 bytes of arena.\n *\n *   input   x "), "%s", text[:200])
	require.Contains(t, string(text), " *   opt     w.m                                      f32[256], 1024 bytes\n")
	clang, err := exe.Toolchain()
	require.NoError(t, err)
	for _, language := range []string{"c", "c++"} {
		said, err := exec.Command(clang, "-x", language, "-fsyntax-only", "-Wall", "-Wextra", "-pedantic", "-Werror", exe.HeaderPath(out)).CombinedOutput()
		require.NoError(t, err, "%s", said)
	}
}

// TestHostileNames: names come from people's files and must pass through C and JSON.
func TestHostileNames(t *testing.T) {
	m := fixture.Train()
	name := "a\"\\??/\n\t\x01é%s*/b"
	m.Name, m.Values[0].Name, m.Values[0].Layer, m.Step[0].Layer = name, name, name, name
	p := buildNamed(t, m, "hostile")
	d, err := exe.ReadDescription(p.path)
	require.NoError(t, err)
	require.Equal(t, name, d.Values[0].Name)
	last := p.lines("--steps", "1", "--save", "c.safetensors")[1]
	require.True(t, last.Done)
	require.Len(t, tensor(t, p.read("c.safetensors"), name), 1024)
	p.lines("--steps", "1", "--resume", "c.safetensors")
	require.Contains(t, p.run("--help").stdout, "é%s")
	require.Contains(t, p.run("--steps", "1", "--profile", "--json").stdout, `a\"\\??/\u000a\u0009\u0001é%s*/b`)
}

// TestSanitized runs the driver under the sanitizers of the compiler.
func TestSanitized(t *testing.T) {
	for _, c := range []struct{ name, flags string }{
		{"address and undefined", "-fsanitize=address,undefined -fno-sanitize-recover=all -g -O0"},
		{"thread", "-fsanitize=thread -g -O0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			flags := strings.Fields(c.flags)
			dir := t.TempDir()
			kernels := fixture.Kernels(t, flags...)
			driver, err := exe.CompileSanitizedDriver(context.Background(), dir, flags...)
			require.NoError(t, err)
			build := func(m *exe.Model) program {
				p := program{t, filepath.Join(dir, m.Name), t.TempDir()}
				err := driver.Build(context.Background(), m, []string{kernels}, p.path)
				if err != nil && strings.Contains(err.Error(), "libclang_rt") {
					t.Skipf("no sanitizers here: %v", err)
				}
				require.NoError(t, err)
				return p
			}
			p := build(fixture.Train())
			p.write("x.npz", npz(t, 0, "x.npy", npy("<f8", "(3, 256)", make([]byte, 3*256*8))))
			ok := func(args ...string) {
				t.Helper()
				r := p.run(args...)
				require.Equal(t, 0, r.status, "%s%s", r.stdout, r.stderr)
			}
			ok("--steps", "20", "--threads", "3", "--profile", "--poison", "--json", "--save", "c.safetensors")
			ok("--steps", "3", "--threads", "2", "--resume", "c.safetensors", "--data", "x.npz")
			ok("--steps", "1", "--init", "c.safetensors")
			ok("--help")
			ok("--describe")
			good := p.read("c.safetensors")
			for i := 0; i < 360; i += 40 {
				p.write("bad.safetensors", good[:i])
				require.Equal(t, 1, p.run("--resume", "bad.safetensors").status)
			}
			p = build(fixture.LM(":256"))
			p.write("text", []byte(strings.Repeat("text ", 20)))
			ok("--steps", "3", "--data", "text")
			ok("--steps", "3")
			p = build(fixture.Control())
			p.write("n.npy", npy("<i4", "()", le(t, int32(50))))
			ok("--input", "n=n.npy", "--input", "index=n.npy", "--threads", "3", "--repeat", "20", "--output", ".")
		})
	}
}
