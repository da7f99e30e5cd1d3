package runtime_test

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"reprise/runtime"
	"reprise/runtime/exe"
	"reprise/runtime/internal/fixture"
)

// built are the models that the tests load, compiled once.
type built struct {
	dir                   string
	toy, affine, untested string // shared
	program               string // toy as an executable
}

var build = sync.OnceValues(func() (b built, err error) {
	b.dir, err = os.MkdirTemp("", "reprise-test-")
	if err != nil {
		return b, err
	}
	kernels := filepath.Join(b.dir, "kernels.o")
	if err := fixture.CompileKernels(kernels); err != nil {
		return b, err
	}
	ctx := context.Background()
	for _, shared := range []bool{false, true} {
		dir := filepath.Join(b.dir, map[bool]string{false: "exe", true: "lib"}[shared])
		if err := os.Mkdir(dir, 0o777); err != nil {
			return b, err
		}
		driver, err := exe.CompileDriver(ctx, dir, shared)
		if err != nil {
			return b, err
		}
		if !shared {
			b.program = filepath.Join(b.dir, "toy")
			if err := driver.Build(ctx, fixture.Train(), []string{kernels}, b.program); err != nil {
				return b, err
			}
			continue
		}
		future := fixture.Train()
		future.Features = []string{"sse4a", "amx-int8", "avx512fp16"}
		b.toy, b.affine, b.untested = filepath.Join(b.dir, "toy.so"), filepath.Join(b.dir, "affine.so"), filepath.Join(b.dir, "future.so")
		for out, m := range map[string]*exe.Model{b.toy: fixture.Train(), b.affine: fixture.Infer(), b.untested: future} {
			if err := driver.Build(ctx, m, []string{kernels}, out); err != nil {
				return b, err
			}
		}
	}
	return b, nil
})

func TestMain(m *testing.M) {
	status := m.Run()
	if b, err := build(); err == nil {
		_ = os.RemoveAll(b.dir)
	}
	os.Exit(status)
}

func models(t *testing.T) built {
	t.Helper()
	fixture.NeedToolchain(t)
	b, err := build()
	require.NoError(t, err)
	return b
}

func load(t *testing.T, path string, o runtime.Options) *runtime.Instance {
	t.Helper()
	i, err := runtime.Load(path, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, i.Close()) })
	return i
}

func floats(xs ...float32) []byte {
	b, _ := binary.Append(nil, binary.LittleEndian, xs)
	return b
}

// input is a deterministic x of the toy model.
func input(k int) []byte {
	xs := make([]float32, 4*256)
	for i := range xs {
		xs[i] = float32(math.Sin(float64(i * (k + 1))))
	}
	return floats(xs...)
}

// steps runs so many on one input and returns the losses' bits and the hash.
func steps(t *testing.T, i *runtime.Instance, n, k int) []string {
	t.Helper()
	loss := make([]byte, 4)
	require.NoError(t, i.Bind("x", input(k)))
	require.NoError(t, i.Bind("loss", loss))
	var got []string
	for range n {
		require.NoError(t, i.Step())
		got = append(got, string(loss))
		read, err := i.Read("loss")
		require.NoError(t, err)
		require.Equal(t, loss, read)
	}
	hash, err := i.StateSHA256()
	require.NoError(t, err)
	return append(got, hash)
}

func TestInstance(t *testing.T) {
	i := load(t, models(t).affine, runtime.Options{Threads: 2})
	x, y, z := floats(1, 2, 3, 4, 5, 6), make([]byte, 24), make([]byte, 8)
	require.EqualError(t, i.Step(), "input \"n\" is not bound\n  hint: bind it with reprise_bind")
	require.NoError(t, i.Bind("x", x))
	require.NoError(t, i.Bind("n", []byte{7, 0, 0, 0}))
	require.NoError(t, i.Bind("out/y", y))
	require.NoError(t, i.Bind("z", z))
	require.NoError(t, i.Step())
	require.Equal(t, floats(102, 204, 306, 408, 510, 612), y)
	require.Equal(t, byte(70), z[0])
	copy(x, floats(0)) // inputs are read anew
	require.NoError(t, i.Write("w", floats(1, 1, 1, 1, 1, 1)))
	require.NoError(t, i.Step())
	require.Equal(t, floats(1, 5, 7, 9, 11, 13), y)
	w, err := i.Read("w")
	require.NoError(t, err)
	require.Equal(t, floats(1, 1, 1, 1, 1, 1), w)
	require.Equal(t, int64(2), i.StepNumber())
	require.NoError(t, i.Reset(0))
	require.Equal(t, int64(0), i.StepNumber())
	w, err = i.Read("w")
	require.NoError(t, err)
	require.Equal(t, floats(100, 200, 300, 400, 500, 600), w)
	require.Equal(t, "infer", i.Description().Kind)

	for _, c := range []struct {
		err  error
		want string
	}{
		{i.Bind("nothing", x), "the model has no value \"nothing\"\n  hint: reprise_describe() lists the names"},
		{i.Bind("x", x[:8]), `"x" is f32[2,3] and takes 24 bytes, not 8`},
		{i.Bind("w", x), "\"w\" is neither an input nor an output\n  hint: use reprise_read and reprise_write for state"},
		{i.Write("x", x), "\"x\" is not state\n  hint: use reprise_bind for inputs"},
		{i.Write("w", x[:4]), `"w" is f32[2,3] and takes 24 bytes, not 4`},
		{i.SetStepNumber(-1), `step -1: want 0 to 2^32 - 1`},
		{i.Resume("none"), "cannot open none: No such file or directory\n  hint: look at the path: it is taken from the directory that the program runs in"},
	} {
		var e *exe.Error
		require.True(t, errors.As(c.err, &e))
		require.EqualError(t, c.err, c.want)
	}
	_, err = i.Read("x")
	require.EqualError(t, err, `"x" is neither state nor an output`)
	_, err = i.Read("nothing")
	require.ErrorContains(t, err, `the model has no value "nothing"`)
}

// TestInstancesAreIndependent: several at once, in one process and with one library,
// on any number of threads, give what one alone gives.
func TestInstancesAreIndependent(t *testing.T) {
	toy := models(t).toy
	want := make([][]string, 3)
	for k := range want {
		want[k] = steps(t, load(t, toy, runtime.Options{Seed: uint64(k), Threads: 1}), 30, k)
	}
	require.NotEqual(t, want[0], want[1])
	l, err := runtime.Open(toy)
	require.NoError(t, err)
	defer l.Close()
	var wg sync.WaitGroup
	got := make([][]string, 9)
	for k := range got {
		i, err := l.Create(runtime.Options{Seed: uint64(k % 3), Threads: 1 + k%4})
		require.NoError(t, err)
		wg.Go(func() {
			got[k] = steps(t, i, 30, k%3)
			require.NoError(t, i.Close())
			require.NoError(t, i.Close(), "twice does nothing")
		})
	}
	wg.Wait()
	for k := range got {
		require.Equal(t, want[k%3], got[k])
	}
}

func TestArenaOfTheCaller(t *testing.T) {
	toy := models(t).toy
	want := steps(t, load(t, toy, runtime.Options{}), 5, 0)
	size := fixture.Train().ArenaBytes
	memory := bytes.Repeat([]byte{0xab}, int(size)+128)
	at := int(-uintptr(unsafe.Pointer(&memory[0])) % 64)
	i, err := runtime.Load(toy, runtime.Options{Arena: memory[at : at+int(size)]})
	require.NoError(t, err)
	require.Equal(t, want, steps(t, i, 5, 0))
	require.NoError(t, i.Close())
	for _, b := range append(memory[:at:at], memory[at+int(size):]...) {
		require.Equal(t, byte(0xab), b, "nothing outside is touched")
	}
	_, err = runtime.Load(toy, runtime.Options{Arena: memory[at+8:]})
	require.EqualError(t, err, "the arena must start at a multiple of 64 bytes")
	_, err = runtime.Load(toy, runtime.Options{Arena: memory[:size-1]})
	require.EqualError(t, err, "an arena of 6607 bytes: the model needs 6608")
}

// TestCheckpointsAreShared: what the library saves the executable resumes, and back.
func TestCheckpointsAreShared(t *testing.T) {
	b := models(t)
	dir := t.TempDir()
	a, c := filepath.Join(dir, "a.safetensors"), filepath.Join(dir, "c.safetensors")
	i := load(t, b.toy, runtime.Options{Seed: 4})
	steps(t, i, 3, 0)
	require.NoError(t, i.Save(a))
	hash, err := i.StateSHA256()
	require.NoError(t, err)
	var losses []float64
	done, err := runtime.Run(context.Background(), b.program, []string{"--resume", a, "--steps", "0"}, nil)
	require.NoError(t, err)
	require.Equal(t, hash, done.StateSHA256)
	require.Equal(t, int64(3), done.Step)
	done, err = runtime.Run(context.Background(), b.program, []string{"--resume", a, "--steps", "2", "--save", c, "--profile"}, func(s runtime.Step) {
		losses = append(losses, s.Loss)
	})
	require.NoError(t, err)
	require.Len(t, losses, 2)
	require.NotEmpty(t, done.Profile)
	require.LessOrEqual(t, done.PeakRSSBytes-done.OtherRSSBytes, done.PromisedPeakBytes)
	require.NoError(t, i.Resume(c))
	require.Equal(t, int64(5), i.StepNumber())
	hash, err = i.StateSHA256()
	require.NoError(t, err)
	require.Equal(t, done.StateSHA256, hash)
	require.NoError(t, i.Reset(0))
	require.NoError(t, i.LoadWeights(c))
	require.Equal(t, int64(0), i.StepNumber())
	require.ErrorContains(t, i.Save(filepath.Join(dir, "none", "x")), "No such file or directory; nothing was left behind")
	require.ErrorContains(t, load(t, b.affine, runtime.Options{}).Resume(c), `is a checkpoint of another model: tensor "w" is f32[256] there and f32[2,3] here`)
}

func TestRun(t *testing.T) {
	b := models(t)
	_, err := runtime.Run(context.Background(), b.program, []string{"--data", "none"}, nil)
	require.EqualError(t, err, "cannot open none: No such file or directory\n  hint: look at the path: it is taken from the directory that the program runs in")
	_, err = runtime.Run(context.Background(), b.program, []string{"--nonsense"}, nil)
	require.EqualError(t, err, "unknown flag --nonsense\n  hint: --help lists the flags")
	_, err = runtime.Run(context.Background(), "none", nil, nil)
	require.ErrorContains(t, err, "no such file or directory")
	_, err = runtime.Run(context.Background(), "/bin/false", nil, nil)
	require.ErrorContains(t, err, "exit status 1")

	ctx, cancel := context.WithCancel(context.Background())
	save := filepath.Join(t.TempDir(), "c.safetensors")
	n := int64(0)
	_, err = runtime.Run(ctx, b.program, []string{"--steps", "4000000000", "--save", save}, func(s runtime.Step) {
		n = s.Step
		cancel()
	})
	require.ErrorIs(t, err, context.Canceled)
	i := load(t, b.toy, runtime.Options{})
	require.NoError(t, i.Resume(save))
	require.Equal(t, n, i.StepNumber())
}

func TestLoadErrors(t *testing.T) {
	b := models(t)
	_, err := runtime.Load("none.so", runtime.Options{})
	require.ErrorContains(t, err, "none.so: no such file or directory")
	_, err = runtime.Load("load_test.go", runtime.Options{})
	require.ErrorContains(t, err, "load_test.go is not a compiled model")
	_, err = runtime.Load(b.program, runtime.Options{})
	require.ErrorContains(t, err, "load "+b.program)
	_, err = runtime.Load(b.toy, runtime.Options{Threads: 1025})
	require.EqualError(t, err, "1025 threads: want 1 to 1024")
	_, err = runtime.Load(b.toy, runtime.Options{Threads: -1})
	require.EqualError(t, err, "-1 threads: want 1 to 1024")
	_, err = runtime.Load(b.untested, runtime.Options{})
	require.ErrorContains(t, err, "this CPU lacks instructions that the program was compiled for (cpu:x86-64-v3): ")
}

// TestExports: a library shows its interface and nothing else, so that models whose
// kernels are named alike live in one process, and has no variables.
func TestExports(t *testing.T) {
	f, err := elf.Open(models(t).toy)
	require.NoError(t, err)
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	require.NoError(t, err)
	var names []string
	for _, s := range symbols {
		if s.Section != elf.SHN_UNDEF {
			names = append(names, s.Name)
		}
	}
	slices.Sort(names)
	require.Equal(t, []string{"reprise_arena_bytes", "reprise_bind", "reprise_count", "reprise_counts", "reprise_create", "reprise_describe",
		"reprise_destroy", "reprise_get_step", "reprise_load", "reprise_probe", "reprise_read", "reprise_reset", "reprise_save", "reprise_set_step",
		"reprise_state_sha256", "reprise_step", "reprise_step_begin", "reprise_step_next", "reprise_write"}, names)
	for _, s := range f.Sections {
		if s.Name == ".data" || s.Name == ".bss" {
			require.LessOrEqual(t, s.Size, uint64(8), "%s: the C start-up files have one variable in each, we have none", s.Name)
		}
	}
}

// TestFromC uses the library the way a C program does.
func TestFromC(t *testing.T) {
	b := models(t)
	clang, err := exe.Toolchain()
	require.NoError(t, err)
	dir := t.TempDir()
	source, program := filepath.Join(dir, "main.c"), filepath.Join(dir, "main")
	require.NoError(t, os.WriteFile(source, []byte(`
#include <stdio.h>
#include <xmmintrin.h>
#include "affine.h"
int main(void) {
    reprise_instance *m;
    reprise_error e;
    float x[6] = {1, 2, 3, 4, 5, 6}, y[6];
    int32_t n = 3;
    if (reprise_create(NULL, NULL, &m, &e) || reprise_bind(m, "x", x, sizeof x, &e) || reprise_bind(m, "n", &n, sizeof n, &e) ||
        reprise_bind(m, "out/y", y, sizeof y, &e) || reprise_step(m, &e)) {
        fprintf(stderr, "%d: %s (%s)\n", e.code, e.message, e.hint);
        return 1;
    }
    if (y[5] != 612) return 2;
    float zeros[6] = {0};
    for (int i = 0; i < 6; i++) x[i] = 0x1p-140f;
    unsigned ours = _mm_getcsr();
    _mm_setcsr(ours | 0xe040); /* as with -ffast-math, and rounding to zero */
    if (reprise_write(m, "w", zeros, sizeof zeros, &e) || reprise_step(m, &e)) return 3;
    if ((_mm_getcsr() & 0xe040) != 0xe040) return 4;
    _mm_setcsr(ours);
    if (y[5] != 0x1p-139f) return 5;
    printf("%g %g %lld\n", y[0], y[5], (long long)reprise_arena_bytes());
    if (reprise_bind(m, "q", x, 4, &e) != REPRISE_USAGE || reprise_bind(m, "q", x, 4, NULL) != REPRISE_USAGE) return 1;
    reprise_destroy(m);
    reprise_destroy(NULL);
    return 0;
}
`), 0o666))
	said, err := exec.Command(clang, "-Wall", "-Werror", "-I", b.dir, "-o", program, source, b.affine, "-Wl,-rpath,"+b.dir).CombinedOutput()
	require.NoError(t, err, "%s", said)
	said, err = exec.Command(program).CombinedOutput()
	require.NoError(t, err, "%s", said)
	require.Equal(t, "1.43493e-42 1.43493e-42 264\n", string(said))
}
