package runtime_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"reprise/runtime"
)

// TestStepByStep: a step that is run one instruction at a time is the step, on any number of threads; a
// step that was begun and not ended is none.
func TestStepByStep(t *testing.T) {
	for _, threads := range []int{1, 3} {
		state := func(step func(i *runtime.Instance)) string {
			i, err := runtime.Load(models(t).toy, runtime.Options{Seed: 5, Threads: threads})
			require.NoError(t, err)
			defer i.Close()
			require.NoError(t, i.Bind("x", input(0)))
			for range 3 {
				step(i)
			}
			require.EqualValues(t, 3, i.StepNumber())
			hash, err := i.StateSHA256()
			require.NoError(t, err)
			return hash
		}
		want := state(func(i *runtime.Instance) { require.NoError(t, i.Step()) })
		seen := []int{}
		require.Equal(t, want, state(func(i *runtime.Instance) {
			require.NoError(t, i.StepBegin())
			seen = seen[:0]
			for at := 0; at >= 0; at = next(t, i) {
				seen = append(seen, at)
			}
			require.Equal(t, -1, next(t, i))
		}))
		require.Greater(t, len(seen), 1)
		require.Equal(t, want, state(func(i *runtime.Instance) {
			require.NoError(t, i.StepBegin())
			require.NoError(t, i.Step())
			require.Equal(t, -1, next(t, i))
		}))
	}
}

// TestCountsNeedCounting: the counters are off until they are asked for.
func TestCountsNeedCounting(t *testing.T) {
	i, err := runtime.Load(models(t).toy, runtime.Options{})
	require.NoError(t, err)
	defer i.Close()
	_, err = i.Counts()
	require.EqualError(t, err, "nothing was counted\n  hint: call reprise_count first")
	require.NoError(t, i.Count())
	counts, err := i.Counts()
	require.NoError(t, err)
	require.Empty(t, counts, "a model made by hand has no plan")
}

func next(t *testing.T, i *runtime.Instance) int {
	t.Helper()
	at, err := i.StepNext()
	require.NoError(t, err)
	return at
}
