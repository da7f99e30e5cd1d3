package compile_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"text/tabwriter"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"reprise/frontend"
	"reprise/frontend/nn"
	"reprise/internal/compile"
	"reprise/ir/dtype"
	"reprise/passes/policy"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// savedModel is a model of two layers in whose first a value has a name, with a decision behind them.
func savedModel() nn.Model {
	return nn.Model{Name: "saved", Loss: func(s *nn.Scope) *nn.Tensor {
		x := s.Input("x", dtype.F32, []int64{16, 24}, nn.Normal01)
		l := s.In("layers.0")
		h := nn.Name(l.Linear("fc", x, 40), "wide")
		x = l.Linear("out", l.Dropout(l.Gelu(h), 0.1), 24)
		l = s.In("layers.1")
		h = l.Linear("fc", x, 40)
		x = l.Linear("out", l.Tanh(h), 24)
		return s.CrossEntropy(s.Linear("head", x, 10), s.Input("y", dtype.I32, []int64{16}, nn.Labels(10)))
	}}
}

// TestSavedValues compares the report of what is kept for the backward part, and what is computed again, with a golden
// file: names, shapes, types, bytes, sources and reasons are stable, and a named value has its name (P059, P060). The
// policy decides alone, so that no search does. `go test -run SavedValues -update` writes it; read the diff.
func TestSavedValues(t *testing.T) {
	mod, err := nn.Train(savedModel(), nn.Recipe{Optimizer: nn.SGD{}, Schedule: nn.Constant{LR: 0.1}})
	require.NoError(t, err)
	m := &frontend.Model{Name: "saved", Kind: "nn", Spec: "saved", Train: true, Module: mod, SHA256: fmt.Sprintf("%x", sha256.Sum256([]byte(mod.String())))}
	p, err := policy.Load("save_only_these_names:wide")
	require.NoError(t, err)
	prog, err := compile.Plan(context.Background(), m, compile.Options{Policy: p, NoMinimum: true, PlanSteps: sweepSteps})
	require.NoError(t, err)
	var buf bytes.Buffer
	w := tabwriter.NewWriter(&buf, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tDTYPE\tSHAPE\tBYTES\tFATE\tRUNS\tSOURCE\tREASON")
	for _, v := range prog.Values {
		switch v.Fate {
		case compile.FateSaved, compile.FateRecomputed, compile.FatePinned:
			fmt.Fprintf(w, "%s\t%s\t%v\t%d\t%s\t%d\t%s\t%s\n", v.Name, v.DType, v.Shape, v.Bytes, v.Fate, v.Runs, v.Source, v.Reason)
		}
	}
	require.NoError(t, w.Flush())
	assert.Contains(t, buf.String(), "layers.0.fc:wide ")
	golden := filepath.Join("testdata", "saved.golden")
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o777))
		require.NoError(t, os.WriteFile(golden, buf.Bytes(), 0o666))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	assert.Equal(t, string(want), buf.String())
}
