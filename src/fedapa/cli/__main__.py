"""python -m fedapa.cli"""

from fedapa.cli import main

main()
