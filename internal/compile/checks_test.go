package compile_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"reprise/internal/compile"
	"reprise/internal/testprog"
)

// TestShareOfChecks: what every compilation checks (the verifier after each pass, every plan and layout that is a
// candidate, in the planner and after it, the proofs on the final program, the kernels of clones) takes at most a
// twentieth of its time.
func TestShareOfChecks(t *testing.T) {
	type program struct{ spec, budget string }
	list, steps := []program{{small()[0], "90%"}}, int64(sweepSteps)
	if testprog.Long() {
		list, steps = []program{{"builtin:gpt", "50%"}, {"builtin:gpt", "min"}, {"builtin:llama4", "95%"}, {"builtin:mixtral", "min"}}, 0
	}
	for _, c := range list {
		p, err := compile.Compile(context.Background(), testprog.Load(t, c.spec, true), compile.Options{Budget: budget(t, c.budget), NoMinimum: !testprog.Long(), PlanSteps: steps})
		require.NoError(t, err)
		share := p.Report.CheckSeconds / p.Report.CompileSeconds
		t.Logf("%s at %s: checks take %.3f s of %.2f s, %.2f %%", c.spec, c.budget, p.Report.CheckSeconds, p.Report.CompileSeconds, 100*share)
		require.Positive(t, p.Report.CheckSeconds)
		if testprog.Long() {
			require.LessOrEqual(t, share, 0.05)
		}
	}
}
