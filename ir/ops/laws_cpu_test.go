package ops_test

import (
	"context"
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

	"reprise/codegen/cpu"
	"reprise/ir/dtype"
	"reprise/ir/interp"
	"reprise/ir/ops"
	"reprise/ir/tensor"
	"reprise/passes/lower"
)

// aligned is a copy of b that starts at a multiple of 64 bytes.
func aligned(b []byte) []byte {
	whole := make([]byte, len(b)+128)
	off := (64 - int(uintptr(unsafe.Pointer(&whole[0]))%64)) % 64
	out := whole[off : off+len(b) : off+len(b)+1]
	copy(out, b)
	return out
}

// Compiled kernels give the reference's bits. A few dtypes by default, all of them and both targets with REPRISE_LONG.
func TestCompiledKernelsMatchReference(t *testing.T) {
	if _, err := exec.LookPath("clang-19"); err != nil {
		t.Skip("clang-19 is not installed")
	}
	info, _ := os.ReadFile("/proc/cpuinfo")
	long := os.Getenv("REPRISE_LONG") != ""
	targets := map[string]cpu.Target{"v3": cpu.V3}
	if strings.Contains(string(info), "avx512bw") {
		if !long {
			targets = map[string]cpu.Target{}
		}
		targets["v4"] = cpu.V4
	}
	for name, target := range targets {
		t.Run(name, func(t *testing.T) { compiledKernels(t, target, long) })
	}
}

func compiledKernels(t *testing.T, target cpu.Target, long bool) {
	table := ops.Table()
	unit := cpu.NewUnit(target)
	type job struct {
		in       *instance
		l        *lower.Lowered
		launches []cpu.Launch
	}
	var jobs []job
	for _, s := range samples() {
		if def := table.Lookup(s.op); def.Elem == nil && def.Kern == nil || s.has("noref") {
			continue
		}
		for _, in := range s.instances(t, table) {
			// By default f32, and what adds up in bf16.
			few := in.d == dtype.F32 || in.d == dtype.BF16 && in.op.Def.Kern != nil
			if !long && !few || lower.IsView(in.op) || lower.IsConstant(in.op) {
				continue
			}
			l, err := lower.Op(in.op)
			require.NoError(t, err, s.line)
			j := job{in: in, l: l}
			for _, launch := range l.Launches {
				if launch.Kern == nil {
					break
				}
				c, err := unit.Kernel(launch.Kern)
				require.NoError(t, err, "%s as %v\n%s", s.line, in.d, launch.Kern.Text())
				j.launches = append(j.launches, c)
			}
			if len(j.launches) == len(l.Launches) {
				jobs = append(jobs, j)
			}
		}
	}
	dir := t.TempDir()
	start := time.Now()
	objects, err := unit.Compile(context.Background(), dir)
	require.NoError(t, err)
	t.Logf("%d ops compiled in %v", len(jobs), time.Since(start))
	so := filepath.Join(dir, "k.so")
	out, err := exec.Command("clang-19", append([]string{"-shared", "-nostdlib", "-fuse-ld=lld", "-o", so}, objects...)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	lib, err := purego.Dlopen(so, purego.RTLD_NOW|purego.RTLD_LOCAL)
	require.NoError(t, err)
	t.Cleanup(func() { _ = purego.Dlclose(lib) })
	scratch := aligned(make([]byte, cpu.ScratchBytes))
	for _, j := range jobs {
		for _, wild := range []bool{false, true} {
			args := j.in.data(rand.New(rand.NewPCG(11, 12)), wild)
			want, err := interp.Run(j.in.f, args)
			require.NoError(t, err, j.in.s.line)
			var operands, results, work [][]byte
			for _, a := range args {
				operands = append(operands, aligned(a.Data))
			}
			for _, r := range j.in.op.Results {
				b := aligned(make([]byte, r.Type.Bytes()))
				for i := range b {
					b[i] = 0xa5
				}
				results = append(results, b)
			}
			for _, n := range j.l.Workspaces {
				work = append(work, aligned(make([]byte, n)))
			}
			for i, launch := range j.l.Launches {
				var f func(args unsafe.Pointer, lo, hi int64, scratch unsafe.Pointer)
				purego.RegisterLibFunc(&f, lib, j.launches[i].Symbol)
				ptrs := make([]unsafe.Pointer, 1, len(launch.Args)+1)
				ptrs = ptrs[:0]
				for _, r := range launch.Args {
					b := map[lower.RefKind][][]byte{lower.Operand: operands, lower.Result: results, lower.Workspace: work}[r.Kind][r.Index]
					ptrs = append(ptrs, unsafe.Pointer(unsafe.SliceData(b)))
				}
				ptrs = append(ptrs, unsafe.Pointer(unsafe.SliceData(j.launches[i].Own)))
				tiles := j.launches[i].Tiles
				f(unsafe.Pointer(unsafe.SliceData(ptrs)), tiles/2, tiles, unsafe.Pointer(&scratch[0]))
				f(unsafe.Pointer(unsafe.SliceData(ptrs)), 0, tiles/2, unsafe.Pointer(&scratch[0]))
			}
			for i, r := range j.in.op.Results {
				got := &tensor.Tensor{DType: r.Type.DType, Shape: r.Type.Shape, Data: results[i]}
				assert.NoError(t, sameBits(want[i], got), "%s as %v, result %d, wild %v", j.in.s.line, j.in.d, i, wild)
			}
		}
	}
}
