package cpu

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
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
	"reprise/ir/kern/scalar"
)

// emitCase is a kernel with buffers to run it on.
type emitCase struct {
	k    *kern.Kernel
	bufs [][]byte
}

// emitFill fills a buffer of type t with values of every kind.
func emitFill(r *rand.Rand, t dtype.Type, n int64) []byte {
	b := make([]byte, n*t.Size())
	special := []float64{0, math.Copysign(0, -1), 1, -1, math.Inf(1), math.Inf(-1), math.NaN(), 1e-40, -1e-42, 3e38, 0.5, 255, 256, -128.5, 2147483648, 9.3e18, 65504, 65520, 1e-7}
	for i := range n {
		f := r.NormFloat64() * math.Exp(r.NormFloat64())
		if r.IntN(6) == 0 {
			f = special[r.IntN(len(special))]
		}
		switch at := b[i*t.Size():]; t {
		case dtype.Bool:
			at[0] = byte(r.IntN(2))
		case dtype.F32:
			binary.LittleEndian.PutUint32(at, math.Float32bits(float32(f)))
		case dtype.F64:
			binary.LittleEndian.PutUint64(at, math.Float64bits(f))
		case dtype.F16:
			binary.LittleEndian.PutUint16(at, scalar.F16(float32(f)))
		case dtype.BF16:
			binary.LittleEndian.PutUint16(at, scalar.BF16(float32(f)))
		default:
			u := r.Uint64()
			if r.IntN(2) == 0 {
				u = uint64(r.IntN(9) - 4)
			}
			var w [8]byte
			binary.LittleEndian.PutUint64(w[:], u)
			copy(at[:t.Size()], w[:])
		}
	}
	return b
}

func emitCaseOf(k *kern.Kernel, r *rand.Rand) emitCase {
	c := emitCase{k: k}
	for _, p := range k.Params {
		c.bufs = append(c.bufs, emitFill(r, p.DType, p.Len))
	}
	return c
}

// emitSame compares buffers; any NaN equals any NaN.
func emitSame(t dtype.Type, a, b []byte) error {
	if bytes.Equal(a, b) {
		return nil
	}
	n := int(t.Size())
	for i := 0; i < len(a); i += n {
		x, y := a[i:i+n], b[i:i+n]
		if bytes.Equal(x, y) {
			continue
		}
		nan := func(v []byte) bool {
			switch t {
			case dtype.F32:
				return math.Float32bits(math.Float32frombits(binary.LittleEndian.Uint32(v)))&0x7fffffff > 0x7f800000
			case dtype.F64:
				return math.IsNaN(math.Float64frombits(binary.LittleEndian.Uint64(v)))
			case dtype.F16:
				return binary.LittleEndian.Uint16(v)&0x7fff > 0x7c00
			case dtype.BF16:
				return binary.LittleEndian.Uint16(v)&0x7fff > 0x7f80
			}
			return false
		}
		if !nan(x) || !nan(y) {
			return fmt.Errorf("element %d of %v: compiled %x, interpreted %x", i/n, t, x, y)
		}
	}
	return nil
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
			t.Logf("%d kernels in %v: %.0f a second", len(u.done), took, float64(len(u.done))/took.Seconds())
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
				for j := range scratch {
					scratch[j] = 0x5a
				}
				sp := unsafe.Pointer(&scratch[(64-int(uintptr(unsafe.Pointer(&scratch[0]))%64))%64])
				// The tiles in two parts, the later one first: their order is free.
				half := c.k.Tiles / 2
				f(unsafe.Pointer(&args[0]), half, c.k.Tiles, sp)
				f(unsafe.Pointer(&args[0]), 0, half, sp)
				for j, p := range c.k.Params {
					if err := emitSame(p.DType, inners[j], want[i][j]); err != nil {
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

func TestRandomOpsShareCode(t *testing.T) {
	u := NewUnit(V4)
	var symbols []string
	for _, id := range []uint32{1, 2, 2} {
		l, err := u.Kernel(samples.Dropout(2048, id))
		require.NoError(t, err)
		symbols = append(symbols, l.Symbol)
	}
	assert.NotEqual(t, symbols[0], symbols[1])
	assert.Equal(t, symbols[1], symbols[2])
	text := strings.Join(u.Modules(), "")
	assert.Equal(t, 3, strings.Count(text, "define "), "a body and two callers")
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
