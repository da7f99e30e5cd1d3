package cpu

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"

	"reprise/codegen/internal/samples"
	"reprise/ir/dtype"
	"reprise/ir/kern"
)

// emitCPUTime is the processor time of this thread so far.
func emitCPUTime(b *testing.B) time.Duration {
	const thread = 3 // CLOCK_THREAD_CPUTIME_ID
	var ts syscall.Timespec
	_, _, err := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, thread, uintptr(unsafe.Pointer(&ts)), 0)
	require.Zero(b, err)
	return time.Duration(ts.Nano())
}

func BenchmarkKernels(b *testing.B) {
	emitTools(b)
	const n = 1 << 22
	id := func(x *kern.Expr) *kern.Expr { return kern.Mul(x, kern.F32(2)) }
	half := func(f func(x *kern.Expr) *kern.Expr) func(x *kern.Expr) *kern.Expr { // rounded to the type of x
		return func(x *kern.Expr) *kern.Expr { return kern.Convert(f(kern.Convert(x, dtype.F32)), x.DType) }
	}
	ks := []*kern.Kernel{samples.Map("scale", n, dtype.F32, id), samples.Map("exp", n, dtype.F32, kern.Exp), samples.Map("log", n, dtype.F32, kern.Log),
		samples.Map("tanh", n, dtype.F32, kern.Tanh), samples.Map("erf", n, dtype.F32, kern.Erf), samples.Map("sin", n, dtype.F32, kern.Sin),
		samples.Map("gelu", n, dtype.F32, samples.Gelu), samples.Map("gelu-erf", n, dtype.F32, samples.GeluErf), samples.Dropout(n, 3), samples.Softmax(n/1024, 1024, 0),
		samples.Map("scale-bf16", n, dtype.BF16, half(id)), samples.Map("gelu-bf16", n, dtype.BF16, half(samples.Gelu)), samples.Map("scale-f16", n, dtype.F16, half(id)),
		samples.LayerNorm(n/1024, 1024), samples.Matmul(64, 512, 2048)}
	for _, target := range []Target{V3, V4} {
		u := NewUnit(target)
		var ls []Launch
		for _, k := range ks {
			l, err := u.Kernel(k)
			require.NoError(b, err)
			ls = append(ls, l)
		}
		objects, err := u.Compile(context.Background(), b.TempDir())
		require.NoError(b, err)
		lib := emitLink(b, objects)
		r := rand.New(rand.NewPCG(1, 1))
		scratch := make([]byte, ScratchBytes)
		for i, k := range ks {
			var f emitFunc
			purego.RegisterLibFunc(&f, lib, ls[i].Symbol)
			var args []unsafe.Pointer
			var total int64
			for _, p := range k.Params {
				one := samples.Fill(r, p.DType, min(p.Len, 1024))
				buf := make([]byte, p.Len*p.DType.Size())
				for at := 0; at < len(buf); at += copy(buf[at:], one) {
				}
				args = append(args, unsafe.Pointer(&buf[0]))
				total += int64(len(buf))
			}
			args = append(args, unsafe.Pointer(unsafe.SliceData(ls[i].Own)))
			b.Run(fmt.Sprintf("%s/%s", []string{"v3", "v4"}[target], k.Name), func(b *testing.B) {
				// Time of the processor, not of the clock: the machine may be shared.
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				best := time.Duration(math.MaxInt64)
				for b.Loop() {
					start := emitCPUTime(b)
					f(unsafe.Pointer(&args[0]), 0, k.Tiles, unsafe.Pointer(&scratch[0]))
					best = min(best, emitCPUTime(b)-start)
				}
				b.ReportMetric(float64(best.Nanoseconds())/float64(k.Params[len(k.Params)-1].Len), "ns/elem")
				b.ReportMetric(float64(total)/float64(best.Nanoseconds()), "GB/s")
			})
		}
	}
}
