package compile

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"reprise/frontend"
	"reprise/internal/diag"
	"reprise/ir"
	"reprise/passes/remat"
)

// TestProveOnceFindsASecondRun: a decision that is cloned into the final program is found and named.
func TestProveOnceFindsASecondRun(t *testing.T) {
	m, err := frontend.Load("builtin:moe,layers=1,d=16,heads=2,seq=8,batch=2,experts=3,vocab=11", frontend.Options{Train: true})
	require.NoError(t, err)
	p, err := Plan(context.Background(), m, Options{NoMinimum: true, PlanSteps: 500})
	require.NoError(t, err)
	f := p.planned.applied.Func
	for _, op := range f.Body.Ops {
		if remat.Det(op) == ir.Decides && len(op.Regions) == 0 {
			f.Body.CloneOp(op, ir.Mapping{}).Remat = op
			e := diag.As(p.ProveOnce())
			require.Equal(t, "pinned", e.Code)
			require.Equal(t, op.Loc.Layer, e.Layer)
			return
		}
	}
	t.Fatal("the model decides nothing")
}
