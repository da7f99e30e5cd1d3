package ptx

import (
	"context"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"reprise/codegen/internal/samples"
	"reprise/ir/dtype"
	"reprise/ir/kern"
)

func updating() bool {
	return flag.Lookup("update") != nil && flag.Lookup("update").Value.String() == "true"
}

func TestMain(m *testing.M) {
	flag.Bool("update", false, "write the golden files anew")
	os.Exit(m.Run())
}

func tools(t *testing.T) {
	t.Helper()
	for _, tool := range []string{"opt-19", "llc-19"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(tool + " is not installed")
		}
	}
}

func compile(t *testing.T, k *kern.Kernel, symbol string) string {
	t.Helper()
	m := NewModule()
	_, err := m.Kernel(k, symbol)
	require.NoError(t, err)
	text, err := m.Compile(context.Background(), "sm_80")
	if err != nil {
		require.NoError(t, err, "%s\n%s", k.Text(), m.LLVM())
	}
	return text
}

func TestGolden(t *testing.T) {
	tools(t)
	gelu := samples.Map("gelu", 5000, dtype.F32, samples.Gelu)
	for _, k := range []*kern.Kernel{gelu, samples.Softmax(4, 1000, 0), samples.LayerNorm(4, 384), samples.Matmul(4, 32, 128), samples.MergeSort(2, 100), samples.Dropout(4096, 3)} {
		t.Run(k.Name, func(t *testing.T) {
			got := compile(t, k, k.Name)
			path := filepath.Join("testdata", k.Name+".ptx")
			if updating() {
				require.NoError(t, os.MkdirAll("testdata", 0o755))
				require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
			}
			want, err := os.ReadFile(path)
			require.NoError(t, err)
			assert.Equal(t, string(want), got, "if the change is meant: go test ./codegen/ptx -update")
		})
	}
}

// TestStructure looks for what must not be in PTX: fused or approximate arithmetic
// that no kernel asked for.
func TestStructure(t *testing.T) {
	tools(t)
	f := func(x *kern.Expr) *kern.Expr { // a product next to a sum, a quotient, a root
		return kern.Sqrt(kern.Div(kern.Add(kern.Mul(x, x), x), x))
	}
	text := compile(t, samples.Map("plain", 5000, dtype.F32, f), "plain")
	assert.Contains(t, text, "mul.rn.f32")
	assert.Contains(t, text, "add.rn.f32")
	assert.Contains(t, text, "div.rn.f32")
	assert.Contains(t, text, "sqrt.rn.f32")
	for _, bad := range []string{"fma", "mad.f", ".ftz", "approx"} {
		assert.NotContains(t, text, bad)
	}
	chain := compile(t, samples.Matmul(4, 32, 128), "chain")
	assert.Contains(t, chain, "fma.rn.f32")
	sum := compile(t, samples.Softmax(4, 1000, 0), "sum")
	assert.Equal(t, 2, strings.Count(sum, "shfl.sync.idx"), "two reductions")
	assert.Contains(t, sum, ".maxntid 64")
	assert.NotContains(t, sum, ".local", "no variable stays in local memory")
}

// TestAllKernelsAssemble gives every sample to llc, and to ptxas where there is one.
func TestAllKernelsAssemble(t *testing.T) {
	tools(t)
	ks := samples.Programs()
	for seed := range uint64(25) {
		ks = append(ks, samples.Grow(seed))
	}
	m := NewModule()
	for i, k := range ks {
		_, err := m.Kernel(k, symbol(k.Name, i))
		require.NoError(t, err, k.Name)
	}
	text, err := m.Compile(context.Background(), "sm_80")
	require.NoError(t, err)
	again, err := m.Compile(context.Background(), "sm_80")
	require.NoError(t, err)
	assert.True(t, text == again, "the same text every time")
	assert.Equal(t, len(ks), strings.Count(text, ".visible .entry"))

	ptxas, err := exec.LookPath("ptxas")
	if err != nil {
		t.Skip("llc-19 accepts all; ptxas is not on PATH, so assembly was not tried")
	}
	in := filepath.Join(t.TempDir(), "k.ptx")
	require.NoError(t, os.WriteFile(in, []byte(text), 0o644))
	out, err := exec.Command(ptxas, "-arch=sm_80", "-v", "-o", filepath.Join(t.TempDir(), "k.cubin"), in).CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, line := range strings.Split(string(out), "\n") {
		if strings.Contains(line, "bytes spill stores") {
			assert.Contains(t, line, " 0 bytes spill stores", line)
		}
	}
}

func symbol(name string, i int) string {
	return strings.Map(func(r rune) rune {
		if r == '-' {
			return '_'
		}
		return r
	}, name) + "_" + string(rune('a'+i/26)) + string(rune('a'+i%26))
}

func TestRefusals(t *testing.T) {
	b := kern.NewBuilder("big", 1)
	l := kern.NewLocal("l", dtype.F64, 10000)
	y := b.Out("y", dtype.F64, 1)
	b.Do(l.Set(kern.I64(0), kern.F64(1)), y.Set(kern.I64(0), l.At(kern.I64(0))))
	_, err := NewModule().Kernel(b.K, "big")
	require.EqualError(t, err, `kernel "big": local arrays and reductions take 80000 bytes of shared memory, a block has 49152`)
}
