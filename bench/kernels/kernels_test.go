package kernels

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"reprise/codegen/cpu"
	"reprise/ir/dtype"
)

func TestRunWithoutPeer(t *testing.T) {
	if _, err := exec.LookPath("clang-19"); err != nil {
		t.Skip("no clang-19: apt-get install clang-19")
	}
	target, err := cpu.ParseTarget("")
	require.NoError(t, err)
	var out strings.Builder
	r, err := Run(context.Background(), Options{Shapes: []Shape{
		{"tiny", 65, 33, 17, 2, true, false, dtype.F32, dtype.F32, dtype.F32, 0},
		{"half", 16, 40, 31, 1, false, true, dtype.BF16, dtype.BF16, dtype.BF16, 0},
	}, Target: target, Rounds: 1, Burst: time.Millisecond, Out: &out})
	require.NoError(t, err)
	require.Len(t, r.Results, 4)
	require.Equal(t, 4, strings.Count(out.String(), "GFLOP/s"))
	for _, x := range r.Results {
		require.Positive(t, x.Seconds)
		require.Zero(t, x.Ratio)
	}
	dir := t.TempDir()
	require.NoError(t, r.Write(dir))
	js, err := os.ReadFile(filepath.Join(dir, "kernels.json"))
	require.NoError(t, err)
	var back Report
	require.NoError(t, json.Unmarshal(js, &back))
	require.Equal(t, *r, back)
	md, err := os.ReadFile(filepath.Join(dir, "kernels.md"))
	require.NoError(t, err)
	require.Contains(t, string(md), "| 2× 65×33×17 Aᵀ f32 | tiny | 1 |")
}

func TestPeerThatIsMissing(t *testing.T) {
	_, err := Run(context.Background(), Options{Python: filepath.Join(t.TempDir(), "python")})
	require.ErrorContains(t, err, "bench/peers/setup.sh makes it")
}
