package once

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"reprise/frontend"
	"reprise/frontend/nn"
	"reprise/internal/compile"
	"reprise/internal/testprog"
	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/interp"
	"reprise/ir/ops"
	"reprise/ir/tensor"
	"reprise/runtime"
	"reprise/runtime/exe"
)

// said is what an executable writes to its two channels, and its exit status.
func said(t testing.TB, program string, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	var out, err bytes.Buffer
	c := exec.Command(program, args...)
	c.Stdout, c.Stderr = &out, &err
	if e := c.Run(); e != nil {
		var exit *exec.ExitError
		require.ErrorAs(t, e, &exit)
	}
	return out.String(), err.String(), c.ProcessState.ExitCode()
}

// talkative has three layers, each of which prints in its middle what recomputation passes by, and asserts at its
// end that no more than limit steps were done.
func talkative(t testing.TB, limit int64) *frontend.Model {
	t.Helper()
	r, err := nn.ParseRecipe([]string{"optimizer=sgd", "lr=0.05", "schedule=constant"})
	require.NoError(t, err)
	mod, err := nn.Train(nn.Model{Name: "talkative", Loss: func(s *nn.Scope) *nn.Tensor {
		x := s.Input("x", dtype.F32, []int64{64, 16}, nn.Normal01)
		seen := s.Buffer("seen", dtype.I64, nil, nn.Zeros)
		s.Update("seen", s.Add(seen, s.Int(dtype.I64, 1)))
		for i := range 3 {
			l := s.Inf("layers.%d", i)
			h := l.Gelu(l.Linear("fc", x, 32))
			l.In("log").Print(fmt.Sprintf("layer %d", i), seen, l.Op("stop_gradient", []*nn.Tensor{h}))
			x = l.Add(x, l.Linear("out", h, 16))
			g := l.In("guard")
			g.Assert(g.Op("compare", []*nn.Tensor{seen, g.Int(dtype.I64, limit)}, ir.A("dir", "lt")), "too many steps")
		}
		return s.MeanAll(s.Square(x))
	}}, r)
	require.NoError(t, err)
	return &frontend.Model{Name: mod.Name, Spec: mod.Name, Module: mod, Train: true}
}

// TestPrintAndAssertOnce: what a model tells the world it tells once a step and in its order, whatever is
// recomputed around it, on any number of threads; an assertion that fails ends the program with its layer and text.
func TestPrintAndAssertOnce(t *testing.T) {
	t.Parallel()
	m := talkative(t, 3)
	want := ""
	for k, o := range []compile.Options{{}, {Budget: compile.Budget{Min: true}}} {
		path, p := lab.Executable(t, m, o)
		assert.Equal(t, k > 0, p.Proof.Clones > 0)
		_, text, status := said(t, path, "--steps=3", fmt.Sprint("--threads=", 1+k), "--quiet")
		assert.Zero(t, status, text)
		if k == 0 {
			want = text
			lines := strings.Split(strings.TrimSpace(text), "\n")
			require.Len(t, lines, 3*3)
			for i, line := range lines {
				assert.True(t, strings.HasPrefix(line, fmt.Sprintf("layer %d i64[] %d f32[64,32] ", i%3, i/3)), line)
				assert.Len(t, strings.Fields(line), 2+2+1+8)
			}
		}
		assert.Equal(t, want, text, "%+v", o)

		// The fourth step fails in the first layer, behind its print and before the others'.
		out, text, status := said(t, path, "--steps=9", "--json", fmt.Sprint("--threads=", 1+k))
		assert.Equal(t, 1, status)
		assert.Equal(t, 3, strings.Count(out, `"step":`), out)
		assert.Contains(t, out, `{"error":{"code":"assert","message":"layer layers.0.guard`)
		assert.Contains(t, out, `assertion failed: too many steps (element 0 of 1 is false)`)
		assert.Equal(t, 1, strings.Count(strings.TrimPrefix(text, want), "\n"), text)
	}
	path := lab.Compile(t, m, compile.Options{Budget: compile.Budget{Min: true}})
	i, err := runtime.Load(path.Library, runtime.Options{Threads: 2})
	require.NoError(t, err)
	defer i.Close()
	testprog.Steer(t, i, m, 0, 3)
	var e *exe.Error
	require.ErrorAs(t, i.Step(), &e)
	assert.Equal(t, "assert", e.Code)
	assert.EqualValues(t, 3, i.StepNumber(), "a step that failed counts")
	require.NoError(t, i.StepBegin())
	for at := 0; at >= 0; {
		if at, err = i.StepNext(); err != nil {
			break
		}
	}
	require.ErrorAs(t, err, &e)
	assert.Contains(t, e.Message, "layers.0.guard")

	// The interpreter stops at the same place with the same words.
	args, seen := []*tensor.Tensor{}, int64(3)
	for _, p := range m.Module.Func("step").Body.Params {
		a := tensor.New(p.Type.DType, p.Type.Shape...)
		if p.Name == "seen" {
			a.SetBits(0, uint64(seen))
		}
		args = append(args, a)
	}
	ref, err := compile.Reference(m.Module)
	require.NoError(t, err)
	_, err = interp.Run(ref.Func("step"), args)
	require.ErrorContains(t, err, "too many steps (element 0 of 1 is false)")
	require.ErrorContains(t, err, "layers.0.guard")
}

// TestPrintedNumbers: numbers are printed as Go prints them, and so the interpreter: the fewest digits that give the
// element back. Eight of an array are shown.
func TestPrintedNumbers(t *testing.T) {
	t.Parallel()
	var body, want strings.Builder
	show := func(d dtype.Type, shown []any, data any, shape ...int64) {
		var raw bytes.Buffer
		require.NoError(t, binary.Write(&raw, binary.LittleEndian, data))
		name := "v" + d.String()
		ty := ir.T(d, shape...)
		fmt.Fprintf(&body, "  %%%s = constant {value=dense(%s: x\"%x\")} : %s loc(c)\n", name, ty, raw.Bytes(), ty)
		fmt.Fprintf(&body, "  print %%%s {message=\"%s is\"} loc(c)\n", name, name)
		fmt.Fprintf(&want, "%s is %s", name, ty)
		for _, w := range shown {
			fmt.Fprintf(&want, " %v", w)
		}
		want.WriteByte('\n')
	}
	inf, nan := math.Inf(1), math.NaN()
	f32 := []float32{0.1, -1.5e-7, 123456, 1 << 24, float32(math.Copysign(0, -1)), float32(-inf), float32(nan), 1.0 / 3, 9}
	show(dtype.F32, []any{f32[0], f32[1], f32[2], f32[3], f32[4], f32[5], f32[6], f32[7]}, f32, 3, 3)
	show(dtype.F64, []any{0.1, 1e300, 100.0, 0.00001234, inf}, []float64{0.1, 1e300, 100, 0.00001234, inf}, 5)
	show(dtype.BF16, []any{float32(1), float32(-2.5)}, []uint16{0x3f80, 0xc020}, 2)
	show(dtype.F16, []any{float32(1)}, []uint16{0x3c00}, 1)
	show(dtype.U64, []any{uint64(math.MaxUint64)}, []uint64{math.MaxUint64}, 1)
	show(dtype.I64, []any{int64(math.MinInt64)}, []int64{math.MinInt64}, 1)
	show(dtype.I8, []any{-128, 127}, []int8{-128, 127}, 2)
	show(dtype.Bool, []any{1, 0}, []uint8{1, 0}, 2)
	text := "module \"numbers\"\n\nfunc @step(%x: f32[2] {feed=\"zeros\", role=\"input\"}) -> (out) {\n" + body.String() +
		"  print {message=\"no values,\\none line\"} loc(c)\n  %out = add %x, %x : f32[2] loc(c)\n  return %out\n}\n"
	want.WriteString("no values, one line\n")
	mod, err := ir.Parse(ops.Table(), "numbers.ir", text)
	require.NoError(t, err)
	path, _ := lab.Executable(t, &frontend.Model{Name: "numbers", Module: mod}, compile.Options{})
	_, got, status := said(t, path, "--quiet")
	assert.Zero(t, status)
	assert.Equal(t, want.String(), got)
}
