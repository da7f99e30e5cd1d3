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
	spec, budgets, steps := small()[0], []string{"90%"}, int64(sweepSteps)
	if testprog.Long() {
		spec, budgets, steps = "builtin:gpt", []string{"50%", "min"}, 0
	}
	for _, b := range budgets {
		p, err := compile.Compile(context.Background(), testprog.Load(t, spec, true), compile.Options{Budget: budget(t, b), NoMinimum: !testprog.Long(), PlanSteps: steps})
		require.NoError(t, err)
		share := p.Report.CheckSeconds / p.Report.CompileSeconds
		t.Logf("%s at %s: checks take %.3f s of %.2f s, %.2f %%", spec, b, p.Report.CheckSeconds, p.Report.CompileSeconds, 100*share)
		require.Positive(t, p.Report.CheckSeconds)
		if testprog.Long() {
			require.LessOrEqual(t, share, 0.05)
		}
	}
}
