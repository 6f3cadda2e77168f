"""Run a scenario: 8x8 digits in four rotations, held by clients whose mixtures drift."""

import cdfl

run = cdfl.run("digits-4", num_uploads=60)
print(run)
for upload in run.uploads[:3]:
    print(upload.client, upload.true_mixture, upload.mixture)
run.plot().savefig("ten_lines.png")
