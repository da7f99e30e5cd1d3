package step_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"reprise/bench/step"
)

// A compiled program that takes 10 ms a step, but 99 ms for the first.
const program = `#!/bin/sh
[ "$1" = --steps ] && [ "$3" = --threads ] && [ "$5" = --json ] || exit 2
i=0
while [ $i -lt $2 ]; do
	ms=10.0; [ $i = 0 ] && ms=99.0
	echo "{\"step\":$i,\"loss\":1.5,\"loss_bits\":\"3fc00000\",\"ms\":$ms}"
	i=$((i+1))
done
echo '{"done":true,"steps":1,"arena_bytes":1048576}'
`

// A peer that takes 20 ms a step; JAX does not start.
const python = `#!/bin/sh
case "$2" in *'"layers":4'*) ;; *) echo "no layers" >&2; exit 1;; esac
case "$1" in *jax*) echo "ModuleNotFoundError: jax" >&2; exit 1;; esac
echo '{"ready":true,"name":"Fake 1.0","params":7}'
while read n; do
	[ "$n" = quit ] && exit 0
	echo '{"ms":[20.0,20.0,20.0],"loss":2.0,"step_bytes":2097152}'
done
`

func TestRunAlternates(t *testing.T) {
	dir := t.TempDir()
	bin := filepath.Join(dir, "peers", ".venv", "bin")
	require.NoError(t, os.MkdirAll(bin, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(bin, "python"), []byte(python), 0o755))
	var compiled []string
	report, err := step.Run(context.Background(), step.Options{
		Configs: []step.Config{{Name: "tiny", Spec: "gpt,layers=4", Steps: 3, Peers: step.Peers()}},
		Budgets: []string{"100%", "50%"},
		Rounds:  2,
		Threads: 2,
		Compile: func(_ context.Context, spec, budget, out string) error {
			compiled = append(compiled, spec+" "+budget)
			return os.WriteFile(out, []byte(program), 0o755)
		},
		PeersDir: filepath.Join(dir, "peers"),
		Results:  filepath.Join(dir, "results"),
	})
	require.NoError(t, err)
	require.Equal(t, []string{"builtin:gpt,layers=4 100%", "builtin:gpt,layers=4 50%"}, compiled)
	require.Len(t, report.Rows, 4)
	ours, torch, jax := report.Rows[0], report.Rows[2], report.Rows[3]
	require.Equal(t, 10.0, ours.Median, "the first step of a turn does not count")
	require.Len(t, ours.MS, 6)
	require.Equal(t, int64(1<<20), ours.Memory)
	require.Equal(t, 2.0, torch.Ratio)
	require.Equal(t, "Fake 1.0", torch.Version)
	require.Contains(t, jax.Refused, "ModuleNotFoundError")

	data, err := os.ReadFile(filepath.Join(dir, "results", "step.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &step.Report{}))
	table, err := os.ReadFile(filepath.Join(dir, "results", "step.md"))
	require.NoError(t, err)
	require.True(t, strings.Contains(string(table), "| tiny | Fake 1.0 | 20.0 | 20.0 | 2.00 | 2 | resident |"), string(table))
}

func TestMissingPeersAreRows(t *testing.T) {
	report, err := step.Run(context.Background(), step.Options{
		Configs: step.Configs()[:1], Rounds: 1, Peers: []string{"torch"},
		Compile: func(_ context.Context, _, _, out string) error {
			return os.WriteFile(out, []byte(program), 0o755)
		},
		PeersDir: t.TempDir(),
	})
	require.NoError(t, err)
	require.Contains(t, report.Rows[1].Refused, "bench/peers/setup.sh")
}
