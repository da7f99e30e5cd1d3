package cpu

import (
	"bytes"
	"context"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"reprise/codegen/internal/samples"
	"reprise/ir/dtype"
	"reprise/ir/kern"
)

// emitCase is a kernel with buffers to run it on.
type emitCase struct {
	k    *kern.Kernel
	bufs [][]byte
}

func emitCaseOf(k *kern.Kernel, r *rand.Rand) emitCase {
	c := emitCase{k: k}
	for _, p := range k.Params {
		c.bufs = append(c.bufs, samples.Fill(r, p.DType, p.Len))
	}
	return c
}

func emitLink(t testing.TB, objects []string) uintptr {
	t.Helper()
	so := filepath.Join(t.TempDir(), "k.so")
	out, err := exec.Command("clang-19", append([]string{"-shared", "-nostdlib", "-fuse-ld=lld", "-Wl,-z,defs", "-o", so}, objects...)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	lib, err := purego.Dlopen(so, purego.RTLD_NOW|purego.RTLD_LOCAL)
	require.NoError(t, err)
	t.Cleanup(func() { purego.Dlclose(lib) })
	return lib
}

func emitTools(t testing.TB) {
	t.Helper()
	if _, err := exec.LookPath("clang-19"); err != nil {
		t.Skip("clang-19 is not installed")
	}
}

// emitLong tells whether the long tests were asked for.
func emitLong() bool { return os.Getenv("REPRISE_LONG") != "" }

// emitRuns tells whether this machine runs code of a target.
func emitRuns(t testing.TB, target Target) bool {
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return target == V3
	}
	want := "avx2"
	if target == V4 {
		want = "avx512bw"
	}
	return strings.Contains(string(info), want)
}

// emitGuarded is a 64-byte aligned copy of b with guard bytes around it.
func emitGuarded(b []byte) (whole, inner []byte) {
	whole = bytes.Repeat([]byte{0xee}, len(b)+192)
	off := 64 + (64-int(uintptr(unsafe.Pointer(&whole[64]))%64))%64
	inner = whole[off : off+len(b) : off+len(b)]
	copy(inner, b)
	return whole, inner
}

type emitFunc func(args unsafe.Pointer, lo, hi int64, scratch unsafe.Pointer)

// emitDifferential compiles the kernels for both targets and compares with the
// interpreter.
func emitDifferential(t *testing.T, cases []emitCase) {
	emitTools(t)
	want := make([][][]byte, len(cases))
	for i, c := range cases {
		require.NoError(t, kern.Check(c.k), "%s", c.k.Text())
		for _, b := range c.bufs {
			want[i] = append(want[i], bytes.Clone(b))
		}
		require.NoError(t, kern.Run(c.k, want[i], 0, c.k.Tiles), "%s", c.k.Text())
	}
	for _, target := range []Target{V3, V4} {
		t.Run([]string{"v3", "v4"}[target], func(t *testing.T) {
			if !emitRuns(t, target) {
				t.Skip("this machine does not run the target's code")
			}
			u := NewUnit(target)
			var ls []Launch
			for _, c := range cases {
				l, err := u.Kernel(c.k)
				require.NoError(t, err)
				ls = append(ls, l)
			}
			start := time.Now()
			objects, err := u.Compile(context.Background(), t.TempDir())
			require.NoError(t, err)
			took := time.Since(start)
			t.Logf("%d kernels in %v: %.0f a second", len(u.parts), took, float64(len(u.parts))/took.Seconds())
			lib := emitLink(t, objects)
			scratch := make([]byte, ScratchBytes+64)
			for i, c := range cases {
				var f emitFunc
				purego.RegisterLibFunc(&f, lib, ls[i].Symbol)
				var wholes, inners [][]byte
				var args []unsafe.Pointer
				for _, b := range c.bufs {
					whole, inner := emitGuarded(b)
					wholes, inners = append(wholes, whole), append(inners, inner)
					args = append(args, unsafe.Pointer(unsafe.SliceData(inner)))
				}
				args = append(args, unsafe.Pointer(unsafe.SliceData(ls[i].Own)))
				for j := range scratch {
					scratch[j] = 0x5a
				}
				sp := unsafe.Pointer(&scratch[(64-int(uintptr(unsafe.Pointer(&scratch[0]))%64))%64])
				// The tiles in two parts, the later one first: their order is free.
				half := c.k.Tiles / 2
				f(unsafe.Pointer(&args[0]), half, c.k.Tiles, sp)
				f(unsafe.Pointer(&args[0]), 0, half, sp)
				for j, p := range c.k.Params {
					if err := samples.Same(p.DType, inners[j], want[i][j]); err != nil {
						t.Fatalf("case %d %q, parameter %d: %v\n%s", i, c.k.Name, j, err, c.k.Text())
					}
					for _, g := range wholes[j][:64] {
						require.EqualValues(t, 0xee, g, "write before parameter %d of %q", j, c.k.Name)
					}
					for _, g := range wholes[j][len(wholes[j])-64:] {
						require.EqualValues(t, 0xee, g, "write behind parameter %d of %q", j, c.k.Name)
					}
				}
			}
		})
	}
}

// get, i64, iv and fv make kernels readable.
func get(v *kern.Var) *kern.Expr { return kern.Get(v) }
func i64(x int64) *kern.Expr     { return kern.I64(x) }
func iv(name string) *kern.Var   { return kern.NewVar(name, dtype.I64) }
func fv(name string) *kern.Var   { return kern.NewVar(name, dtype.F32) }

func TestRowProgramsEqualInterpreter(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	var cases []emitCase
	for _, k := range samples.Programs() {
		cases = append(cases, emitCaseOf(k, r))
	}
	for _, id := range []uint32{1, 2, 0xffffffff} { // one code, three kernels
		cases = append(cases, emitCaseOf(samples.Dropout(2048, id), r))
	}
	for _, typ := range []dtype.Type{dtype.F32, dtype.F64} { // numbers in the code, numbers from a list, and more numbers from it
		for _, by := range [][2]float64{{1.5, 2}, {0.1, 2}, {-3, 0.3}, {1.5, 2}, {0.1, 2}, {math.Inf(1), -0.0}} {
			cases = append(cases, emitCaseOf(samples.Map("line", 1100, typ, func(x *kern.Expr) *kern.Expr {
				return kern.Add(kern.Mul(x, kern.Float(typ, by[0])), kern.Float(typ, by[1]))
			}), r))
		}
	}
	emitDifferential(t, cases)
}

func TestElementaryFunctionsEqualInterpreter(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 1))
	fs := map[string]func(x *kern.Expr) *kern.Expr{"exp": kern.Exp, "exp2": kern.Exp2, "expm1": kern.Expm1, "log": kern.Log, "log2": kern.Log2,
		"log1p": kern.Log1p, "tanh": kern.Tanh, "sinh": kern.Sinh, "cosh": kern.Cosh, "sigmoid": kern.Sigmoid, "softplus": kern.Softplus,
		"rsqrt": kern.Rsqrt, "erf": kern.Erf, "erfinv": kern.ErfInv, "asin": kern.Asin, "acos": kern.Acos, "atan": kern.Atan, "asinh": kern.Asinh,
		"acosh": kern.Acosh, "atanh": kern.Atanh, "sin": kern.Sin, "cos": kern.Cos, "tan": kern.Tan, "cbrt": kern.Cbrt,
		"pow":   func(x *kern.Expr) *kern.Expr { return kern.Pow(x, kern.Float(x.DType, 2.5)) },
		"atan2": func(x *kern.Expr) *kern.Expr { return kern.Atan2(x, kern.Float(x.DType, -0.7)) }}
	var cases []emitCase
	for name, f := range fs {
		for _, typ := range []dtype.Type{dtype.F32, dtype.F64} {
			cases = append(cases, emitCaseOf(samples.Map(name, 1100, typ, f), r))
		}
	}
	emitDifferential(t, cases)
}

func TestConversionsEqualInterpreter(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 1))
	var cases []emitCase
	for _, from := range dtype.All() {
		for _, to := range dtype.All() {
			if from == dtype.Key || to == dtype.Key {
				continue
			}
			const n = 150
			b := kern.NewBuilder("convert", 1)
			x, y, z := b.In("x", from, n), b.Out("y", to, n), b.Out("z", to, n)
			i := iv("i")
			b.Do(kern.Lane(i, i64(n), y.Set(get(i), kern.Convert(x.At(get(i)), to))))
			b.Do(kern.Range(i, i64(n), z.Set(get(i), kern.Convert(x.At(get(i)), to))))
			cases = append(cases, emitCaseOf(b.K, r))
		}
	}
	emitDifferential(t, cases)
}

// Kernels that differ in ids of random ops are one function; those that differ in numbers are two, whatever their count.
func TestKernelsShareCode(t *testing.T) {
	u := NewUnit(V4)
	defined := func() int { return strings.Count(strings.Join(u.Modules(), ""), "define ") }
	symbols := map[string]bool{}
	var lists []string
	for _, id := range []uint32{1, 2, 2} {
		l, err := u.Kernel(samples.Dropout(2048, id))
		require.NoError(t, err)
		symbols[l.Symbol] = true
		lists = append(lists, string(l.Own))
	}
	assert.Len(t, symbols, 1)
	assert.NotEqual(t, lists[0], lists[1])
	assert.Equal(t, lists[1], lists[2])
	assert.Equal(t, 1, defined())

	clear(symbols)
	for i := range 50 {
		l, err := u.Kernel(samples.Map("scale", 1100, dtype.F32, func(x *kern.Expr) *kern.Expr {
			return kern.Add(kern.Mul(x, kern.Float(x.DType, 1+float64(i))), kern.Float(x.DType, 2))
		}))
		require.NoError(t, err)
		symbols[l.Symbol] = true
		assert.Len(t, l.Own, min(i, 1)*8, "what does not differ is in the code")
	}
	assert.Len(t, symbols, 2)
	assert.Equal(t, 3, defined())
}

func TestCompileIsDeterministic(t *testing.T) {
	emitTools(t)
	var first [][]byte
	for range 2 {
		u := NewUnit(V4)
		for _, k := range samples.Programs()[:14] {
			_, err := u.Kernel(k)
			require.NoError(t, err)
		}
		a, err := u.Kernel(samples.Programs()[0])
		require.NoError(t, err)
		renamed := samples.Programs()[0]
		renamed.Name = "other"
		again, err := u.Kernel(renamed)
		require.NoError(t, err)
		assert.Equal(t, a, again, "equal kernels are one function")
		objects, err := u.Compile(context.Background(), t.TempDir())
		require.NoError(t, err)
		for i, o := range objects {
			data, err := os.ReadFile(o)
			require.NoError(t, err)
			if len(first) <= i {
				first = append(first, data)
			} else {
				assert.True(t, bytes.Equal(first[i], data), "object %d", i)
			}
		}
	}
}

// emitSame compares buffers of compiled code with the interpreter's.
func emitSame(t dtype.Type, got, want []byte) error { return samples.Same(t, got, want) }
